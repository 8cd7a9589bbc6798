// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/definition.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/text/byte_alphabet.h"

namespace stepforge {

namespace {

constexpr JsonLimits kDefinitionLimits = {.max_bytes = int64_t{128} << 20, .max_depth = 32};
constexpr int64_t kMaxVocabulary = 4'000'000;

void require_flag(const JsonReader& object, const char* key, bool wanted, bool fallback) {
  if (object.boolean_or(key, fallback) != wanted) object.refuse(key, format("only {} is supported", wanted));
}

using PieceIds = std::unordered_map<std::string_view, int32_t>;

void read_vocabulary(const JsonReader& vocab, TokenizerDefinition& definition) {
  const size_t count = vocab.object().json().size();
  if (static_cast<int64_t>(count) > kMaxVocabulary)
    vocab.fail(format("{} entries; at most {} are accepted", count, kMaxVocabulary));
  definition.pieces.resize(count);
  std::vector<bool> taken(count);
  for (const auto& [piece, value] : vocab.json().items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= count) {
      vocab.fail(format("{} has the id {}; ids must be 0 to {} without holes", json_excerpt(Json(piece)),
                        json_excerpt(value), static_cast<int64_t>(count) - 1));
    }
    const size_t id = value.get<size_t>();
    if (taken[id]) {
      vocab.fail(format("both {1} and {2} have the id {0}", id, json_excerpt(Json(definition.pieces[id])),
                        json_excerpt(Json(piece))));
    }
    if (piece.empty()) vocab.fail("an empty token");
    taken[id] = true;
    definition.pieces[id] = piece;
  }
}

PieceIds index_pieces(const TokenizerDefinition& definition) {
  PieceIds ids;
  ids.reserve(definition.pieces.size());
  for (size_t id = 0; id < definition.pieces.size(); ++id)
    ids.emplace(definition.pieces[id], static_cast<int32_t>(id));
  return ids;
}

void require_all_bytes(const JsonReader& vocab, const PieceIds& ids) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string piece = to_byte_alphabet(std::string(1, static_cast<char>(byte)));
    if (!ids.contains(piece)) {
      vocab.fail(format("no token {} for the byte 0x{:02X}; byte-level BPE needs all 256",
                        json_excerpt(Json(piece)), byte));
    }
  }
}

/// "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> merge_parts(const JsonReader& merge) {
  if (merge.json().is_array()) {
    if (merge.size() != 2) merge.refuse("a merge has two parts");
    return {merge.at(0).text(), merge.at(1).text()};
  }
  const std::string_view text = merge.text();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    merge.refuse("a merge has two parts with one space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonReader& merges, const PieceIds& ids, TokenizerDefinition& definition) {
  definition.merges.reserve(merges.size());
  PairMap<bool> seen(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const JsonReader merge = merges.at(rank);
    const auto [left, right] = merge_parts(merge);
    const std::string whole = std::string(left) + std::string(right);
    for (const std::string_view piece : {left, right, std::string_view(whole)}) {
      if (!ids.contains(piece))
        merge.refuse(format("{} is not in the vocabulary", json_excerpt(Json(piece))));
    }
    const TokenPair pair = token_pair(ids.at(left), ids.at(right));
    if (std::exchange(seen[pair], true)) merge.refuse("the same merge is earlier in the list");
    definition.merges.push_back(pair);
    definition.merged_ids.push_back(ids.at(whole));
  }
}

void require_absent_or_empty(const JsonReader& model, const char* key) {
  if (model.has(key) && !model[key].text().empty()) model[key].refuse("only null is supported");
}

PieceIds read_model(const JsonReader& model, TokenizerDefinition& definition) {
  if (model.has("type") && model["type"].text() != "BPE") model["type"].refuse("only BPE is supported");
  model.only_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                   "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("dropout") && model["dropout"].number() != 0.0)
    model["dropout"].refuse("only null is supported");
  require_absent_or_empty(model, "continuing_subword_prefix");
  require_absent_or_empty(model, "end_of_word_suffix");
  require_flag(model, "byte_fallback", false, false);
  definition.ignore_merges = model.boolean_or("ignore_merges", false);
  read_vocabulary(model["vocab"], definition);
  PieceIds ids = index_pieces(definition);
  require_all_bytes(model["vocab"], ids);
  read_merges(model["merges"], ids, definition);
  return ids;
}

void read_pre_tokenizer(const JsonReader& root, TokenizerDefinition& definition) {
  if (!root.has("pre_tokenizer")) root.refuse("pre_tokenizer", "only byte-level tokenizers are supported");
  const JsonReader pre_tokenizer = root["pre_tokenizer"];
  definition.pre_tokenizer = PreTokenizer(pre_tokenizer, definition.normalizer.keeps_beginning());
  if (!definition.pre_tokenizer.ends_in_bytes())
    pre_tokenizer.refuse("only ByteLevel, or a Sequence that ends in it, is supported");
}

/// Hugging Face ignores the id in the file: a token of the model's vocabulary keeps that id, the others are
/// numbered after it in the order of the file. A file with other ids would be read differently there.
void read_added_tokens(const JsonReader& root, const PieceIds& ids, TokenizerDefinition& definition) {
  if (!root.has("added_tokens")) return;
  const JsonReader tokens = root["added_tokens"];
  auto next = static_cast<int32_t>(definition.pieces.size());
  std::unordered_set<std::string_view> seen;
  SplitPattern::Scratch scratch;
  std::string buffer;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const JsonReader token = tokens.at(i);
    token.only_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const std::string& content = token["content"].text();
    if (content.empty()) token["content"].refuse("an added token must not be empty");
    if (!seen.insert(content).second) token["content"].refuse("the same content is added twice");
    const auto in_model = ids.find(content);
    const int32_t expected = in_model != ids.end() ? in_model->second : next++;
    if (token["id"].integer(0, kMaxVocabulary - 1) != expected) {
      token["id"].refuse(
          format("the id of {} must be {} (added tokens follow the model's {} entries without holes)",
                 json_excerpt(Json(content)), expected, definition.pieces.size()));
    }
    const bool special = token.boolean_or("special", false);
    AddedToken added{.id = expected, .content = content, .special = special};
    added.normalized = token.boolean_or("normalized", !special);
    added.single_word = token.boolean_or("single_word", false);
    added.lstrip = token.boolean_or("lstrip", false);
    added.rstrip = token.boolean_or("rstrip", false);
    if (added.normalized) added.pattern = definition.normalizer.apply(content, buffer, scratch);
    if (added.pattern.empty()) token["content"].refuse("the normalizer leaves nothing of this added token");
    definition.added_tokens.push_back(std::move(added));
  }
}

void check_decoder(const JsonReader& root) {
  if (!root.has("decoder")) root.refuse("decoder", "only ByteLevel is supported");
  const JsonReader type = root["decoder"]["type"];
  if (type.text() != "ByteLevel") type.refuse("only ByteLevel is supported");
}

/// Ids of the vocabulary or of added tokens.
int32_t vocabulary_size(const TokenizerDefinition& definition) {
  auto size = static_cast<int32_t>(definition.pieces.size());
  for (const AddedToken& token : definition.added_tokens) size = std::max(size, token.id + 1);
  return size;
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
      text += Json(member->first).dump() + ':';
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
  const PieceIds ids = read_model(root["model"], definition);
  read_pre_tokenizer(root, definition);
  read_added_tokens(root, ids, definition);
  check_decoder(root);
  if (root.has("post_processor"))
    definition.special_tokens = read_post_processor(root["post_processor"], vocabulary_size(definition));
  return definition;
}

}  // namespace stepforge
