// SPDX-License-Identifier: Apache-2.0
// A tokenizer as in Hugging Face tokenizers: added tokens, normalizer, pre-tokenizer, model; and back, its decoder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/added_tokens.h"
#include "stepforge/text/definition.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

class PipelineTokenizer final : public Tokenizer {
 public:
  /// `files` contains "tokenizer.json" and the files beside it. eos and bos are chosen, and FormatError is
  /// thrown, as documented for load_tokenizer(). `source` is the folder, for error texts.
  PipelineTokenizer(TokenizerFiles files, const std::string& source);

  int32_t vocab_size() const override { return static_cast<int32_t>(text_by_id_.size()); }
  std::unique_ptr<Encoder> encoder() const override;
  SpecialTokens special_tokens() const override { return definition_.special_tokens; }
  std::string_view token_bytes(int32_t id) const override;
  std::unique_ptr<TokenDecoder> decoder(bool skip_special) const override;
  bool is_special(int32_t id) const override;
  bool is_added(int32_t id) const override;
  std::optional<int32_t> eos_id() const override { return eos_; }
  std::optional<int32_t> bos_id() const override { return bos_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  std::vector<std::string> notes() const override { return definition_.notes; }
  void save_pretrained(const std::filesystem::path& folder) const override;

 private:
  class WordEncoder;
  class ChainDecoder;

  void place_tokens();
  void read_special_roles();
  std::optional<int32_t> find_token(std::string_view content) const;
  const std::string& spelling(int32_t id) const;
  std::string default_config() const;
  std::string default_special_tokens() const;

  TokenizerFiles files_;
  ModelTokens tokens_;
  TokenizerDefinition definition_;
  AddedTokenFinder first_finder_;
  AddedTokenFinder second_finder_;
  /// What the decoder reads: spellings, or bytes if it is ByteLevel alone. "" where there is no token.
  std::vector<std::string> text_by_id_;
  std::vector<bool> special_;
  /// Left out by a decoder that skips special tokens: Hugging Face compares the spelling.
  std::vector<bool> skipped_;
  std::optional<int32_t> eos_;
  std::optional<int32_t> bos_;
  std::string fingerprint_;
};

}  // namespace stepforge
