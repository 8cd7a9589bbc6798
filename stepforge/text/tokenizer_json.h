// SPDX-License-Identifier: Apache-2.0
// Writes the tokenizer.json of a byte-level BPE tokenizer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/text/pair_map.h"

namespace stepforge {

/// The ids are, in this order: the 256 bytes, one token for each merge, and "<|endoftext|>" as a special
/// added token. A merge is a pair of ids, each a byte or the token of an earlier merge; every merge must make
/// a new string. `split_pattern` is the pre-tokenization regex; with "" the whole text is one word.
std::string tokenizer_json(const std::vector<TokenPair>& merges, std::string_view split_pattern);

struct ByteLevelOptions {
  bool add_prefix_space = false;
  bool ignore_merges = false;
  /// "": the whole text is one word.
  std::string_view pattern;
};

/// The document of a byte-level BPE tokenizer from its parts as tokenizer.json has them.
Json byte_level_json(Json vocab, Json merges, Json added_tokens, const ByteLevelOptions& options);

}  // namespace stepforge
