// SPDX-License-Identifier: Apache-2.0
// Writes the tokenizer.json of a byte-level BPE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/pair_map.h"

namespace stepforge {

/// Ids: the bytes 0 to 255, then the tokens the merges make (in order, each a new string), then
/// "<|endoftext|>" as special added token. `split_pattern` "" makes the whole text one word. Merges name ids,
/// which must exist before they are used.
std::string tokenizer_json(const std::vector<TokenPair>& merges, std::string_view split_pattern);

}  // namespace stepforge
