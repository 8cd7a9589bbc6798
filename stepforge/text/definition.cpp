// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/definition.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"

namespace stepforge {

namespace {

/// They are looked for with a tree of their bytes.
constexpr size_t kMaxAddedBytes = size_t{8} << 20;

/// A vocabulary may have as many tokens, and there are about as many merges.
constexpr JsonLimits kDefinitionLimits = {
    .max_bytes = int64_t{128} << 20, .max_depth = 32, .max_elements = 3 * kMaxVocabulary / 2};

void read_model_and_pre_tokenizer(const JsonReader& root, TokenizerDefinition& definition) {
  if (root.has("pre_tokenizer")) definition.pre_tokenizer = PreTokenizer(root["pre_tokenizer"]);
  definition.model = read_model(root["model"], definition.pre_tokenizer.ends_in_bytes());
  if (definition.model.takes_bytes) definition.pre_tokenizer.leave_bytes_to_model();
}

/// Hugging Face ignores the id in the file: a token of the model's vocabulary keeps that id, the others are
/// numbered after it in the order of the file. A file with other ids would be read differently there.
void read_added_tokens(const JsonReader& root, TokenizerDefinition& definition) {
  if (!root.has("added_tokens")) return;
  const JsonReader tokens = root["added_tokens"];
  const Vocabulary& vocabulary = *definition.model.vocabulary;
  int32_t next = vocabulary.count();
  std::unordered_set<std::string_view> seen;
  SplitPattern::Scratch scratch;
  std::string buffer;
  size_t head = 0;
  size_t pattern_bytes = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const JsonReader token = tokens.at(i);
    token.only_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const std::string& content = token["content"].text();
    if (content.empty()) token["content"].refuse("an added token must not be empty");
    if (!seen.insert(content).second) token["content"].refuse("the same content is added twice");
    const std::optional<int32_t> in_model = vocabulary.find(content);
    const int32_t expected = in_model ? *in_model : next++;
    if (token["id"].integer(0, kMaxVocabulary - 1) != expected) {
      token["id"].refuse(
          format("the id of {} must be {} (added tokens follow the model's {} entries without holes)",
                 json_excerpt(Json(content)), expected, vocabulary.count()));
    }
    if (!in_model && vocabulary.contains(expected)) {
      token["id"].refuse(format("that is the id of {} in the model's vocabulary, which has holes",
                                json_excerpt(Json(vocabulary.piece(expected)))));
    }
    const bool special = token.boolean_or("special", false);
    AddedToken added{.id = expected, .content = content, .special = special};
    added.normalized = token.boolean_or("normalized", !special);
    added.single_word = token.boolean_or("single_word", false);
    added.lstrip = token.boolean_or("lstrip", false);
    added.rstrip = token.boolean_or("rstrip", false);
    if (added.normalized) added.pattern = definition.normalizer.apply(content, buffer, head, scratch);
    pattern_bytes += added.pattern.size();
    if (pattern_bytes > kMaxAddedBytes)
      tokens.fail(format("added tokens of more than {} bytes together", kMaxAddedBytes));
    if (added.pattern.empty()) token["content"].refuse("the normalizer leaves nothing of this added token");
    definition.added_tokens.push_back(std::move(added));
  }
}

/// Ids of the vocabulary or of added tokens.
int32_t vocabulary_size(const TokenizerDefinition& definition) {
  int32_t size = definition.model.vocabulary->id_end();
  for (const AddedToken& token : definition.added_tokens) size = std::max(size, token.id + 1);
  return size;
}

/// Appends a string of a document as JSON. A vocabulary has hundreds of thousands, most of which need no escapes.
void append_string(const std::string& value, std::string& text) {
  const bool is_plain = std::all_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
  });
  if (!is_plain) {
    text += Json(value).dump();
    return;
  }
  text += '"';
  text += value;
  text += '"';
}

/// Appends the JSON with the keys of objects in order.
void append_sorted(const Json& json, std::string& text) {
  auto separate = [&text, first = true]() mutable {
    if (!std::exchange(first, false)) text += ',';
  };
  if (json.is_object()) {
    const auto& members = json.get_ref<const Json::object_t&>();
    std::vector<const Json::object_t::value_type*> sorted;
    for (const auto& member : members) sorted.push_back(&member);
    std::sort(sorted.begin(), sorted.end(),
              [](auto* left, auto* right) { return left->first < right->first; });
    text += '{';
    for (const auto* member : sorted) {
      separate();
      append_string(member->first, text);
      text += ':';
      append_sorted(member->second, text);
    }
    text += '}';
  } else if (json.is_array()) {
    text += '[';
    for (const Json& element : json) {
      separate();
      append_sorted(element, text);
    }
    text += ']';
  } else if (json.is_string()) {
    append_string(json.get_ref<const std::string&>(), text);
  } else if (json.is_number_unsigned()) {
    text += std::to_string(json.get<uint64_t>());
  } else {
    text += json.dump();
  }
}

/// The same for every order of keys.
std::string sorted_hash(const Json& document) {
  std::string text;
  append_sorted(document, text);
  return content_hash(text);
}

}  // namespace

TokenizerDefinition parse_definition(std::string_view json, const std::string& source) {
  const Json document = parse_json(json, source, kDefinitionLimits);
  const JsonReader root(document, source);
  root.only_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  if (root.has("version") && root["version"].text() != "1.0")
    root["version"].refuse("only \"1.0\" is supported");
  for (const char* key : {"truncation", "padding"}) {
    if (root.has(key)) root[key].refuse("only null is supported");
  }
  TokenizerDefinition definition;
  if (root.has("normalizer")) definition.normalizer = Normalizer(root["normalizer"]);
  definition.content_hash = sorted_hash(document);
  read_model_and_pre_tokenizer(root, definition);
  read_added_tokens(root, definition);
  if (root.has("decoder")) definition.decoder = Decoder(root["decoder"]);
  if (root.has("post_processor"))
    definition.special_tokens = read_post_processor(root["post_processor"], vocabulary_size(definition));
  return definition;
}

}  // namespace stepforge
