// SPDX-License-Identifier: Apache-2.0
// The checked content of a tokenizer.json: only components that Stepforge implements exactly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/decoder.h"
#include "stepforge/text/model.h"
#include "stepforge/text/model_tokens.h"
#include "stepforge/text/normalizer.h"
#include "stepforge/text/post_processor.h"
#include "stepforge/text/pre_tokenizer.h"

namespace stepforge {

/// A string that is one token wherever it occurs; found before any splitting.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  /// Marks structure rather than text.
  bool special = false;
  /// Hugging Face looks for tokens with `normalized` false first, then for the others in the rest of the
  /// text.
  bool normalized = false;
  /// Not found between or beside characters of words.
  bool single_word = false;
  /// The white space before or after it in the text becomes part of it.
  bool lstrip = false;
  bool rstrip = false;
  /// What to look for, and what it decodes as: `content`, normalized if `normalized` is true. Not empty.
  std::string pattern = content;
};

/// The parts of a tokenizer, in the order in which a text passes them.
struct TokenizerDefinition {
  /// Their ids either follow the model's vocabulary without holes or belong to entries of it.
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  ModelDefinition model;
  /// Put around a text on request.
  SpecialTokens special_tokens;
  Decoder decoder;
  /// Hash of the JSON value with all added tokens: layout and the order of keys do not matter.
  std::string content_hash;
  /// What was ignored, one line each: truncation and padding, which transformers stores and its calls replace.
  std::vector<std::string> notes;
};

/// Reads the text of a tokenizer.json. `tokens`, which the files beside it list, are added, or change the flags of tokens
/// that it has, as in transformers: a token of the model's vocabulary keeps its id, the others follow. Throws FormatError
/// if a file gives a token another id, or if a reference leads nowhere. Throws FormatError naming `source`, the component
/// and the value for malformed or contradictory definitions, and for components that Stepforge does not implement exactly.
TokenizerDefinition parse_definition(std::string_view json, const std::string& source,
                                     const ModelTokens& tokens = {});

}  // namespace stepforge
