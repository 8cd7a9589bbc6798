// SPDX-License-Identifier: Apache-2.0
// Writes the tokenizer.json of a byte-level BPE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/pair_map.h"

namespace stepforge {

/// Ids: the bytes 0 to 255, then the tokens of the merges (in order, each a new string), then "<|endoftext|>"
/// as a special added token. A merge may only use smaller ids than its own. With `split_pattern` "" the whole
/// text is one word.
std::string tokenizer_json(const std::vector<TokenPair>& merges, std::string_view split_pattern);

}  // namespace stepforge
