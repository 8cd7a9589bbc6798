// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/model.h"

#include "stepforge/text/bpe_model.h"
#include "stepforge/text/unigram_model.h"
#include "stepforge/text/word_model.h"

namespace stepforge {

namespace {

ModelDefinition read_bpe(const JsonReader& model, bool byte_words) {
  BpeDefinition definition(model);
  const std::shared_ptr<const Vocabulary> vocabulary = definition.vocabulary;
  if (byte_words && definition.is_byte_level())
    return {vocabulary, std::make_shared<ByteBpeModel>(definition), true};
  return {vocabulary, std::make_shared<CharacterBpeModel>(std::move(definition))};
}

/// Old files have no type; Hugging Face tries the models one after the other.
std::string model_type(const JsonReader& model) {
  if (model.has("type")) return model["type"].text();
  if (model.has("merges")) return "BPE";
  if (model["vocab"].json().is_array()) return "Unigram";
  return model.has("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

ModelDefinition read_unigram(const JsonReader& model) {
  const auto unigram = std::make_shared<UnigramModel>(model);
  return {unigram->vocabulary(), unigram};
}

ModelDefinition read_words(const JsonReader& model, const std::string& type) {
  const auto vocabulary = std::make_shared<Vocabulary>(model["vocab"]);
  if (type == "WordPiece") return {vocabulary, std::make_shared<WordPieceModel>(model, vocabulary)};
  return {vocabulary, std::make_shared<WordLevelModel>(model, vocabulary)};
}

}  // namespace

ModelDefinition read_model(const JsonReader& model, bool byte_words) {
  const std::string type = model_type(model);
  if (type == "BPE") return read_bpe(model, byte_words);
  if (type == "Unigram") return read_unigram(model);
  if (type == "WordPiece" || type == "WordLevel") return read_words(model, type);
  model["type"].refuse("only BPE, Unigram, WordLevel and WordPiece are supported");
}

}  // namespace stepforge
