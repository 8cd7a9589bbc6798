// SPDX-License-Identifier: Apache-2.0
// The content of a tokenizer.json, checked: it holds nothing that Stepforge does not implement exactly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/pair_map.h"

namespace stepforge {

/// A piece of text that is one token wherever it appears, found before any splitting.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  /// Marks structure rather than text.
  bool special = false;
  /// Hugging Face looks for tokens with `normalized` false first, then for the others in the rest of the text.
  bool normalized = false;
};

/// A byte-level BPE tokenizer.
struct TokenizerDefinition {
  /// The model's vocabulary by id, as spelled in the file (byte alphabet).
  std::vector<std::string> pieces;
  /// By rank: the merge of lowest index applies first.
  std::vector<TokenPair> merges;
  /// merged_ids[rank] is the token that merges[rank] makes.
  std::vector<int32_t> merged_ids;
  /// A word that is a token as a whole is not taken apart first (Llama 3).
  bool ignore_merges = false;
  /// Applied one after the other, each to the pieces of the one before; none: the whole text is one word.
  std::vector<std::string> split_patterns;
  /// Ids follow the model's vocabulary without holes, or name entries of it.
  std::vector<AddedToken> added_tokens;
  /// Hash of the JSON value, so that layout and the order of keys do not matter.
  std::string content_hash;
};

/// Reads the text of a tokenizer.json. Throws FormatError naming `source`, the component and the value for
/// malformed or contradictory definitions, and for every component that Stepforge does not implement exactly.
TokenizerDefinition parse_definition(std::string_view json, const std::string& source);

}  // namespace stepforge
