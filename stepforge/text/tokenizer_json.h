// SPDX-License-Identifier: Apache-2.0
// Writes the tokenizer.json of a byte-level BPE tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/text/known_patterns.h"
#include "stepforge/text/pair_map.h"

namespace stepforge {

/// How digits are split before the pattern splits a text. Digits are the characters of \p{N}.
enum class DigitSplit : uint8_t {
  by_pattern,  ///< not at all
  one,         ///< each is a word
  three,       ///< at most three are a word, counted from the left
};

/// How a text becomes words.
struct WordSplit {
  /// A regular expression in Oniguruma's language; with "" the whole text is one word.
  std::string_view pattern = kLlama3Pattern;
  DigitSplit digits = DigitSplit::by_pattern;
};

/// The setting called pattern, one or three. Throws UsageError for other names.
DigitSplit parse_digit_split(std::string_view name);

/// The pre-tokenizer that splits in this way and writes the words in the byte alphabet. `add_prefix_space`, a space
/// before a text that begins with none, is only for the pattern of GPT-2 and for none.
Json pre_tokenizer_json(const WordSplit& split, bool add_prefix_space = false);

struct ByteLevelVocabulary {
  /// The spelling of each id: bytes in the byte alphabet, special tokens as they are.
  std::vector<std::string> pieces;
  /// By rank. Pairs of ids.
  std::vector<TokenPair> merges;
  /// Special tokens that are not among the pieces have the ids after them.
  std::vector<std::string> special_tokens;
};

/// `begin`, if not "", is one of the special tokens, which the post-processor puts before each text.
std::string bpe_tokenizer_json(const ByteLevelVocabulary& vocabulary, const WordSplit& split,
                               std::string_view begin = "");

/// The ids are, in this order: the 256 bytes, one token for each merge, and "<|endoftext|>" as a special
/// added token. A merge is a pair of ids, each a byte or the token of an earlier merge; every merge must make
/// a new string. `split_pattern` is the pre-tokenization regex; with "" the whole text is one word.
std::string tokenizer_json(const std::vector<TokenPair>& merges, std::string_view split_pattern);

/// A special added token, found in a text as it is.
Json special_token_json(std::string_view content, int64_t id);

struct ByteLevelFlags {
  bool add_prefix_space = false;
  bool ignore_merges = false;
};

/// The document of a byte-level BPE tokenizer from its parts as tokenizer.json has them.
Json byte_level_json(Json vocab, Json merges, Json added_tokens, const WordSplit& split,
                     const ByteLevelFlags& flags = {});

}  // namespace stepforge
