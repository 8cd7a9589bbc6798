// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/model.h"

#include "stepforge/text/bpe_model.h"

namespace stepforge {

namespace {

ModelDefinition read_bpe(const JsonReader& model, bool byte_words) {
  BpeDefinition definition(model);
  const std::shared_ptr<const Vocabulary> vocabulary = definition.vocabulary;
  if (byte_words && definition.is_byte_level())
    return {vocabulary, std::make_shared<ByteBpeModel>(definition), true};
  return {vocabulary, std::make_shared<CharacterBpeModel>(std::move(definition))};
}

}  // namespace

ModelDefinition read_model(const JsonReader& model, bool byte_words) {
  const std::string type = model.text_or("type", "BPE");
  if (type == "BPE") return read_bpe(model, byte_words);
  model["type"].refuse("only BPE is supported");
}

}  // namespace stepforge
