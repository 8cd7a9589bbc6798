// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/definition.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
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
/// numbered after it in the order in which they are added. A file with other ids would be read differently there.
class AddedTokenList {
 public:
  explicit AddedTokenList(TokenizerDefinition& definition)
      : definition_(definition), next_(definition.model.vocabulary->count()) {}

  void read(const JsonReader& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const JsonReader token = tokens.at(i);
      token.only_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      const std::string& content = token["content"].text();
      if (content.empty()) token["content"].refuse("an added token must not be empty");
      if (find(content) != nullptr) token["content"].refuse("the same content is added twice");
      const bool special = token.boolean_or("special", false);
      add({.content = content,
           .id = token["id"].integer(0, kMaxVocabulary - 1),
           .where = format("{}: \"{}.id\"", token.source(), token.path()),
           .special = special,
           .normalized = token.boolean_or("normalized", !special),
           .single_word = token.boolean_or("single_word", false),
           .lstrip = token.boolean_or("lstrip", false),
           .rstrip = token.boolean_or("rstrip", false)});
    }
    changed_ = false;
  }

  /// Returns whether this changes the list.
  bool merge(const ModelTokens& tokens) {
    for (const ListedToken& token : tokens.listed) {
      if (token.content.empty()) continue;
      if (AddedToken* known = find(token.content); known == nullptr)
        add(token);
      else
        replace_flags(*known, token);
    }
    for (const ListedToken& token : tokens.further) {
      if (token.content.empty()) continue;
      if (const AddedToken* known = find(token.content); known != nullptr)
        require_id(token, known->id);
      else
        add(token);
    }
    for (const auto& [role, content] : tokens.roles) {
      const auto listed = std::ranges::find(tokens.listed, content, &ListedToken::content);
      AddedToken* token = find(content);
      if (token == nullptr || token->special || (!tokens.roles_are_special && listed == tokens.listed.end()))
        continue;
      token->special = changed_ = true;
    }
    return changed_;
  }

 private:
  AddedToken* find(std::string_view content) {
    const auto place = places_.find(std::string(content));
    return place == places_.end() ? nullptr : &definition_.added_tokens[place->second];
  }

  void add(const ListedToken& token) {
    const Vocabulary& vocabulary = *definition_.model.vocabulary;
    const std::optional<int32_t> in_model = vocabulary.find(token.content);
    if (token.is_reference && !in_model)
      throw FormatError(format("{} is {}, which is not in the vocabulary of tokenizer.json", token.where,
                               json_excerpt(Json(token.content))));
    const int32_t id = in_model ? *in_model : next_++;
    require_id(token, id);
    if (!in_model && vocabulary.contains(id)) {
      throw FormatError(format(
          "{}: the id of {} would be {}, that of {} in the model's vocabulary, which has holes", token.where,
          json_excerpt(Json(token.content)), id, json_excerpt(Json(vocabulary.piece(id)))));
    }
    places_.emplace(token.content, definition_.added_tokens.size());
    definition_.added_tokens.push_back({.id = id, .content = token.content});
    replace_flags(definition_.added_tokens.back(), token);
    changed_ = true;
  }

  void replace_flags(AddedToken& token, const ListedToken& flags) {
    require_id(flags, token.id);
    const auto set = [&](bool& flag, bool value) {
      changed_ = changed_ || flag != value;
      flag = value;
    };
    set(token.special, flags.special);
    set(token.normalized, flags.normalized);
    set(token.single_word, flags.single_word);
    set(token.lstrip, flags.lstrip);
    set(token.rstrip, flags.rstrip);
  }

  void require_id(const ListedToken& token, int32_t id) const {
    if (!token.id || *token.id == id) return;
    throw FormatError(format(
        "{}: the id of {} is {} here, but must be {} (tokens of the model's vocabulary keep their ids, and "
        "added ones follow its {} entries without holes); make the files of this tokenizer agree, for "
        "example by saving it with transformers",
        token.where, json_excerpt(Json(token.content)), *token.id, id,
        definition_.model.vocabulary->count()));
  }

  TokenizerDefinition& definition_;
  std::unordered_map<std::string, size_t> places_;
  int32_t next_;
  bool changed_ = false;
};

void make_patterns(TokenizerDefinition& definition, const std::string& source) {
  SplitPattern::Scratch scratch;
  std::string buffer;
  size_t head = 0;
  size_t pattern_bytes = 0;
  for (size_t i = 0; i < definition.added_tokens.size(); ++i) {
    AddedToken& token = definition.added_tokens[i];
    token.pattern = token.normalized
                        ? std::string(definition.normalizer.apply(token.content, buffer, head, scratch))
                        : token.content;
    pattern_bytes += token.pattern.size();
    if (pattern_bytes > kMaxAddedBytes)
      throw FormatError(format("{}: \"added_tokens\": added tokens of more than {} bytes together", source,
                               kMaxAddedBytes));
    if (token.pattern.empty())
      throw FormatError(
          format("{}: \"added_tokens[{}].content\": the normalizer leaves nothing of the added token {}",
                 source, i, json_excerpt(Json(token.content))));
  }
}

Json added_tokens_json(const TokenizerDefinition& definition) {
  Json tokens = Json::array();
  for (const AddedToken& token : definition.added_tokens) {
    tokens.push_back({{"id", token.id},
                      {"content", token.content},
                      {"single_word", token.single_word},
                      {"lstrip", token.lstrip},
                      {"rstrip", token.rstrip},
                      {"normalized", token.normalized},
                      {"special", token.special}});
  }
  return tokens;
}

/// Adds the tokens of the files. Writes back into the document what determines ids and flags of tokens.
void read_added_tokens(Json& document, const std::string& source, const ModelTokens& tokens,
                       TokenizerDefinition& definition) {
  const JsonReader root(document, source);
  AddedTokenList list(definition);
  if (root.has("added_tokens")) list.read(root["added_tokens"]);
  if (list.merge(tokens)) document["added_tokens"] = added_tokens_json(definition);
  make_patterns(definition, source);
}

/// Removes from the document settings that belong to a call: truncation and padding.
void pass_over_call_settings(Json& document, const std::string& source, TokenizerDefinition& definition) {
  const JsonReader root(document, source);
  std::vector<std::string> found;
  for (const char* key : {"truncation", "padding"}) {
    if (root.has(key)) found.push_back(format("{} {}", key, json_excerpt(root[key].object().json())));
  }
  if (found.empty()) return;
  definition.notes.push_back(
      format("{}: {} is stored there and not used: texts are encoded whole", source, join(found, ", ")));
  for (const char* key : {"truncation", "padding"})
    if (document.contains(key)) document[key] = nullptr;
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

TokenizerDefinition parse_definition(std::string_view json, const std::string& source,
                                     const ModelTokens& tokens) {
  Json document = parse_json(json, source, kDefinitionLimits);
  const JsonReader root(document, source);
  root.only_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  if (root.has("version") && root["version"].text() != "1.0")
    root["version"].refuse("only \"1.0\" is supported");
  TokenizerDefinition definition;
  pass_over_call_settings(document, source, definition);
  if (root.has("normalizer")) definition.normalizer = Normalizer(root["normalizer"]);
  read_model_and_pre_tokenizer(root, definition);
  read_added_tokens(document, source, tokens, definition);
  definition.content_hash = sorted_hash(document);
  if (root.has("decoder")) definition.decoder = Decoder(root["decoder"]);
  if (root.has("post_processor"))
    definition.special_tokens = read_post_processor(root["post_processor"], vocabulary_size(definition));
  return definition;
}

}  // namespace stepforge
