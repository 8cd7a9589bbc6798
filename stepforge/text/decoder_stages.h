// SPDX-License-Identifier: Apache-2.0
// The steps of decoding. Each does what Hugging Face's decoder of the same name does with the list of all tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "stepforge/text/decoder.h"
#include "stepforge/text/splitter.h"

namespace stepforge {

/// The end of the chain.
class TextSink final : public DecoderStage {
 public:
  explicit TextSink(std::string& output) : output_(output) {}
  void text(std::string_view part) override { output_ += part; }
  void end_token() override {}
  void finish() override {}

 private:
  std::string& output_;
};

/// A stage with another after it; passes everything on.
class PassingStage : public DecoderStage {
 public:
  explicit PassingStage(std::unique_ptr<DecoderStage> next) : next_(std::move(next)) {}
  void text(std::string_view part) override { next_->text(part); }
  void end_token() override { next_->end_token(); }
  void finish() override { next_->finish(); }

 protected:
  void pass_token(std::string_view token) {
    next_->text(token);
    next_->end_token();
  }
  DecoderStage& next() { return *next_; }

 private:
  std::unique_ptr<DecoderStage> next_;
};

/// A stage that needs whole tokens.
class TokenStage : public PassingStage {
 public:
  using PassingStage::PassingStage;
  void text(std::string_view part) final { token_ += part; }
  void end_token() final {
    token(std::move(token_));
    token_.clear();
  }

 protected:
  virtual void token(std::string token) = 0;

 private:
  std::string token_;
};

/// Puts a space between tokens.
class JoinStage final : public PassingStage {
 public:
  using PassingStage::PassingStage;
  void text(std::string_view part) override;
  void end_token() override;

 private:
  void begin();
  bool any_ = false;
  bool inside_ = false;
};

/// Joins all tokens into one.
class FuseStage final : public PassingStage {
 public:
  using PassingStage::PassingStage;
  void end_token() override {}
  void finish() override;
};

/// Joins the bytes of all tokens into one token. With `raw` they need not be UTF-8.
class ByteLevelStage final : public TokenStage {
 public:
  ByteLevelStage(std::unique_ptr<DecoderStage> next, bool raw) : TokenStage(std::move(next)), raw_(raw) {}
  void finish() override;

 private:
  void token(std::string token) override;
  bool raw_;
  std::string held_;
};

/// Joins adjacent "<0x..>" tokens into one if their bytes are UTF-8; otherwise each becomes U+FFFD.
class ByteFallbackStage final : public TokenStage {
 public:
  using TokenStage::TokenStage;
  void finish() override;

 private:
  void token(std::string token) override;
  void pass_bytes();
  std::string bytes_;
};

/// Removes up to `start` and `stop` times a character from the beginning and end of each token.
class StripStage final : public PassingStage {
 public:
  StripStage(std::unique_ptr<DecoderStage> next, std::string content, size_t start, size_t stop)
      : PassingStage(std::move(next)), content_(std::move(content)), start_(start), stop_(stop) {}
  void text(std::string_view part) override;
  void end_token() override;

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
  size_t removed_ = 0;
  bool beginning_ = true;
  size_t held_ = 0;  ///< how many of the character came last
};

/// Replaces the matches of a pattern in each token.
class ReplaceStage final : public TokenStage {
 public:
  ReplaceStage(std::unique_ptr<DecoderStage> next, SplitPattern pattern, std::string content)
      : TokenStage(std::move(next)), pattern_(std::move(pattern)), content_(std::move(content)) {}

 private:
  void token(std::string token) override;
  SplitPattern pattern_;
  std::string content_;
  SplitPattern::Scratch scratch_;
};

/// Replaces a character by a space; with `removes_first` it is removed from the first token.
class MetaspaceStage final : public PassingStage {
 public:
  MetaspaceStage(std::unique_ptr<DecoderStage> next, std::string replacement, bool removes_first)
      : PassingStage(std::move(next)), replacement_(std::move(replacement)), removes_(removes_first) {}
  void text(std::string_view part) override;
  void end_token() override;

 private:
  std::string replacement_;
  bool removes_;
};

/// Replaces a suffix by a space, except in the last token.
class BpeStage final : public TokenStage {
 public:
  BpeStage(std::unique_ptr<DecoderStage> next, std::string suffix)
      : TokenStage(std::move(next)), suffix_(std::move(suffix)) {}
  void finish() override;

 private:
  void token(std::string token) override;
  std::string suffix_;
  std::optional<std::string> held_;
};

/// Puts a space before tokens that do not begin with a prefix, and removes the prefix from the others.
class WordPieceStage final : public TokenStage {
 public:
  WordPieceStage(std::unique_ptr<DecoderStage> next, std::string prefix, bool cleanup)
      : TokenStage(std::move(next)), prefix_(std::move(prefix)), cleanup_(cleanup) {}

 private:
  void token(std::string token) override;
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

/// Leaves out tokens that repeat the one before, and padding.
class CtcStage final : public TokenStage {
 public:
  CtcStage(std::unique_ptr<DecoderStage> next, std::string pad, std::string delimiter, bool cleanup)
      : TokenStage(std::move(next)),
        pad_(std::move(pad)),
        delimiter_(std::move(delimiter)),
        cleanup_(cleanup) {}

 private:
  void token(std::string token) override;
  std::string pad_;
  std::string delimiter_;  ///< becomes a space
  bool cleanup_;
  std::optional<std::string> last_;
};

}  // namespace stepforge
