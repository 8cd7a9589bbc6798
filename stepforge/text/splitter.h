// SPDX-License-Identifier: Apache-2.0
// Pre-tokenization: splits text into the words to which byte-level BPE is applied one by one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

/// The pattern of GPT-4 and Llama 3: contractions, words with one leading character, up to three digits,
/// punctuation, line breaks, spaces.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The pattern of GPT-2, which Hugging Face's ByteLevel pre-tokenizer uses when use_regex is true.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A compiled pattern; immutable, may be shared between threads.
class SplitPattern {
 public:
  /// `pattern` in Oniguruma's language (see pattern_rewriter.h). Throws FormatError naming `source` if it is
  /// not supported, does not compile or can match the empty string.
  SplitPattern(std::string_view pattern, const std::string& source);

  /// One thread's working memory for matching; usable with every pattern.
  class Scratch {
   public:
    Scratch();

   private:
    friend class SplitPattern;
    struct State;
    std::shared_ptr<State> state_;
  };

  /// A match, as offsets in bytes.
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// The first match that begins at byte `from` or later, with the conditions of piece_length().
  std::optional<Match> find(std::string_view text, size_t from, Scratch& scratch) const;

  /// Length of the first piece of `text` from `position` on: a match, or the text before the next match.
  /// `text` must be valid UTF-8 with a character at `position`. Throws Error if the match takes more steps
  /// than any reasonable pattern needs.
  size_t piece_length(std::string_view text, size_t position, Scratch& scratch) const;

 private:
  std::string source_;
  std::shared_ptr<const void> code_;
};

}  // namespace stepforge
