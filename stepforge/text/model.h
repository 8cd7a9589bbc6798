// SPDX-License-Identifier: Apache-2.0
// The model of a tokenizer.json: from one word to its ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "stepforge/base/json_reader.h"
#include "stepforge/text/vocabulary.h"

namespace stepforge {

/// Immutable; may be shared between threads.
class Model {
 public:
  virtual ~Model() = default;

  /// Appends the ids of one word, which is UTF-8 and not empty. The same word has always the same ids. Throws Error
  /// if the word needs an unknown token and the model has none.
  virtual void append_word(std::string_view word, std::vector<int32_t>& ids) const = 0;
};

/// A model with its vocabulary.
struct ModelDefinition {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::shared_ptr<const Model> model;
  /// The model takes the bytes of a word itself, instead of a word written in the byte alphabet.
  bool takes_bytes = false;
};

/// Reads the "model" of a tokenizer.json. `byte_words`: its words would be written in the byte alphabet. Throws
/// FormatError naming file, component and value for what is malformed or not supported.
ModelDefinition read_model(const JsonReader& model, bool byte_words);

}  // namespace stepforge
