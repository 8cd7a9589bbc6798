#include "stepforge/text/definition.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/text/splitter.h"
#include "stepforge/text/byte_alphabet.h"

namespace stepforge {

namespace {

// Sorted, unlike base/json.h's ordered object, whose look-up walks all keys: too slow for a vocabulary of
// 150,000.
using Value = nlohmann::json;

constexpr size_t max_file_bytes = size_t{128} << 20;
constexpr int max_depth = 32;
constexpr size_t max_vocabulary = 4'000'000;

Value parse_strictly(std::string_view text, const std::string& source) {
  if (text.size() > max_file_bytes) {
    throw FormatError(format("{}: {} bytes; at most {} are accepted", source, text.size(), max_file_bytes));
  }
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int depth, Value::parse_event_t event, Value& parsed) {
    if (depth > max_depth)
      throw FormatError(format("{}: JSON nested deeper than {} levels", source, max_depth));
    if (event == Value::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Value::parse_event_t::object_end) open_objects.pop_back();
    if (event == Value::parse_event_t::key && !open_objects.back().insert(parsed.get<std::string>()).second) {
      throw FormatError(format("{}: key {} appears twice in one JSON object", source, parsed.dump()));
    }
    return true;
  };
  try {
    return Value::parse(text.begin(), text.end(), watch);
  } catch (const Value::exception& error) {
    throw FormatError(format("{}: bad JSON: {}", source, error.what()));
  }
}

/// A short rendering of a value for error texts.
std::string excerpt(const Value& value) {
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

/// A value of the file with its path ("model.merges[3]") for error texts.
class Node {
 public:
  Node(const Value& value, std::string path, const std::string& source)
      : value_(value), path_(std::move(path)), source_(source) {}

  [[noreturn]] void refuse(std::string_view why) const {
    throw FormatError(format("{}: {} {}", source_, path_, why));
  }
  [[noreturn]] void refuse_value(std::string_view rule) const {
    refuse(format("is {}; {}", excerpt(value_), rule));
  }

  Node operator[](const char* key) const {
    require_object();
    const auto found = value_.find(key);
    if (found == value_.end()) refuse(format("has no \"{}\"", key));
    return {*found, path_ + "." + key, source_};
  }
  /// nullptr-like: absent and null are the same to Hugging Face.
  bool has(const char* key) const {
    require_object();
    const auto found = value_.find(key);
    return found != value_.end() && !found->is_null();
  }
  Node at(size_t index) const { return {value_[index], format("{}[{}]", path_, index), source_}; }
  size_t size() const { return value_.size(); }
  const Value& value() const { return value_; }
  bool is_array() const { return value_.is_array(); }

  void require_object() const {
    if (!value_.is_object()) refuse_value("expected an object");
  }
  void require_array() const {
    if (!value_.is_array()) refuse_value("expected an array");
  }
  const std::string& text() const {
    if (!value_.is_string()) refuse_value("expected a string");
    return value_.get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) refuse_value("expected true or false");
    return value_.get<bool>();
  }
  int32_t id() const {
    if (!value_.is_number_unsigned() || value_.get<uint64_t>() >= max_vocabulary) {
      refuse_value(format("expected a token id from 0 to {}", max_vocabulary - 1));
    }
    return static_cast<int32_t>(value_.get<uint64_t>());
  }
  bool flag(const char* key, bool fallback) const { return has(key) ? (*this)[key].boolean() : fallback; }

  void only_keys(std::initializer_list<std::string_view> keys) const {
    require_object();
    for (const auto& [key, unused] : value_.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        refuse(format("has the unknown key \"{}\"; it may mean a behaviour that is not implemented",
                      excerpt(Value(key))));
      }
    }
  }
  void require_flag(const char* key, bool wanted, bool fallback) const {
    if (flag(key, fallback) != wanted) (*this)[key].refuse_value(format("only {} is supported", wanted));
  }

 private:
  const Value& value_;
  std::string path_;
  const std::string& source_;
};

using PieceIds = std::unordered_map<std::string_view, int32_t>;

void read_vocabulary(const Node& vocab, TokenizerDefinition& definition) {
  vocab.require_object();
  const size_t count = vocab.size();
  if (count > max_vocabulary)
    vocab.refuse(format("has {} entries; at most {} are accepted", count, max_vocabulary));
  definition.pieces.resize(count);
  std::vector<bool> taken(count);
  for (const auto& [piece, value] : vocab.value().items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= count) {
      vocab.refuse(format("gives {} the id {}; ids must be 0 to {}, without holes", excerpt(Value(piece)),
                          excerpt(value), static_cast<int64_t>(count) - 1));
    }
    const size_t id = value.get<size_t>();
    if (taken[id]) {
      vocab.refuse(format("gives the id {} to both {} and {}", id, excerpt(Value(definition.pieces[id])),
                          excerpt(Value(piece))));
    }
    if (piece.empty()) vocab.refuse("holds an empty token");
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

void require_all_bytes(const Node& vocab, const PieceIds& ids) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string piece = to_byte_alphabet(std::string(1, static_cast<char>(byte)));
    if (!ids.contains(piece)) {
      vocab.refuse(format("lacks the token {} of the byte 0x{:02X}; byte-level BPE needs all 256",
                          excerpt(Value(piece)), byte));
    }
  }
}

/// "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> merge_parts(const Node& merge) {
  if (merge.is_array()) {
    if (merge.size() != 2) merge.refuse_value("a merge has two parts");
    return {merge.at(0).text(), merge.at(1).text()};
  }
  const std::string_view text = merge.text();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    merge.refuse_value("a merge has two parts with one space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const Node& merges, const PieceIds& ids, TokenizerDefinition& definition) {
  merges.require_array();
  definition.merges.reserve(merges.size());
  PairMap<bool> seen(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Node merge = merges.at(rank);
    const auto [left, right] = merge_parts(merge);
    const std::string whole = std::string(left) + std::string(right);
    for (const std::string_view piece : {left, right, std::string_view(whole)}) {
      if (!ids.contains(piece))
        merge.refuse_value(format("{} is not in the vocabulary", excerpt(Value(piece))));
    }
    const TokenPair pair = token_pair(ids.at(left), ids.at(right));
    if (std::exchange(seen[pair], true)) merge.refuse_value("the same merge stands in the list before");
    definition.merges.push_back(pair);
    definition.merged_ids.push_back(ids.at(whole));
  }
}

void require_absent_or_empty(const Node& model, const char* key) {
  if (model.has(key) && !model[key].text().empty()) model[key].refuse_value("only null is supported");
}

PieceIds read_model(const Node& model, TokenizerDefinition& definition) {
  if (model.has("type") && model["type"].text() != "BPE") model["type"].refuse_value("only BPE is supported");
  model.only_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                   "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("dropout") && model["dropout"].value() != 0.0)
    model["dropout"].refuse_value("only null is supported");
  require_absent_or_empty(model, "continuing_subword_prefix");
  require_absent_or_empty(model, "end_of_word_suffix");
  model.require_flag("byte_fallback", false, false);
  definition.ignore_merges = model.flag("ignore_merges", false);
  read_vocabulary(model["vocab"], definition);
  PieceIds ids = index_pieces(definition);
  require_all_bytes(model["vocab"], ids);
  read_merges(model["merges"], ids, definition);
  return ids;
}

void read_split(const Node& split, const std::string& source, TokenizerDefinition& definition) {
  split.only_keys({"type", "pattern", "behavior", "invert"});
  const Node pattern = split["pattern"];
  pattern.only_keys({"Regex"});
  if (split["behavior"].text() != "Isolated")
    split["behavior"].refuse_value("only \"Isolated\" is supported");
  split.require_flag("invert", false, false);
  const std::string& regex = pattern["Regex"].text();
  SplitPattern(regex, source + ": pre_tokenizer");
  definition.split_patterns.push_back(regex);
}

void read_byte_level(const Node& byte_level, TokenizerDefinition& definition) {
  byte_level.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  byte_level.require_flag("add_prefix_space", false, true);
  if (byte_level.flag("use_regex", true)) definition.split_patterns.emplace_back(gpt2_pattern);
}

/// ByteLevel, or a Sequence of any number of Split and then one ByteLevel.
void read_pre_tokenizer(const Node& root, const std::string& source, TokenizerDefinition& definition) {
  if (!root.has("pre_tokenizer"))
    root.refuse("has no pre_tokenizer; only byte-level tokenizers are supported");
  const Node top = root["pre_tokenizer"];
  if (top["type"].text() != "Sequence") {
    if (top["type"].text() != "ByteLevel")
      top["type"].refuse_value("only ByteLevel, or a Sequence that ends in it, is supported");
    return read_byte_level(top, definition);
  }
  top.only_keys({"type", "pretokenizers"});
  const Node steps = top["pretokenizers"];
  steps.require_array();
  if (steps.size() == 0) steps.refuse("is empty; the last step must be ByteLevel");
  for (size_t i = 0; i < steps.size(); ++i) {
    const Node step = steps.at(i);
    const bool last = i + 1 == steps.size();
    const std::string wanted = last ? "ByteLevel" : "Split";
    if (step["type"].text() != wanted) step["type"].refuse_value(format("only {} is supported here", wanted));
    if (last) {
      read_byte_level(step, definition);
    } else {
      read_split(step, source, definition);
    }
  }
}

/// Hugging Face ignores the id in the file: a token of the model's vocabulary keeps that id, the others are
/// numbered after it in the order of the file. A file that says otherwise would be read differently there.
void read_added_tokens(const Node& root, const PieceIds& ids, TokenizerDefinition& definition) {
  if (!root.has("added_tokens")) return;
  const Node tokens = root["added_tokens"];
  tokens.require_array();
  auto next = static_cast<int32_t>(definition.pieces.size());
  std::set<std::string> seen;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Node token = tokens.at(i);
    token.only_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) token.require_flag(flag, false, false);
    const std::string& content = token["content"].text();
    if (content.empty()) token.refuse("has an empty content");
    if (!seen.insert(content).second) token.refuse_value("the same content is added twice");
    const auto in_model = ids.find(content);
    const int32_t expected = in_model != ids.end() ? in_model->second : next++;
    if (token["id"].id() != expected) {
      token["id"].refuse_value(
          format("the id of {} must be {} (added tokens follow the model's {} entries without holes)",
                 excerpt(Value(content)), expected, definition.pieces.size()));
    }
    const bool special = token.flag("special", false);
    definition.added_tokens.push_back({expected, content, special, token.flag("normalized", !special)});
  }
}

void check_decoder(const Node& root) {
  if (!root.has("decoder")) root.refuse("has no decoder; ByteLevel is expected");
  const Node type = root["decoder"]["type"];
  if (type.text() != "ByteLevel") type.refuse_value("only ByteLevel is supported");
}

/// Post-processors add tokens around a text or trim offsets; encoding without added tokens is the same with
/// any of these.
void check_post_processor(const Node& processor) {
  const std::string& type = processor["type"].text();
  if (type == "ByteLevel" || type == "TemplateProcessing") return;
  if (type != "Sequence")
    processor["type"].refuse_value("only ByteLevel, TemplateProcessing and Sequence are supported");
  const Node steps = processor["processors"];
  steps.require_array();
  for (size_t i = 0; i < steps.size(); ++i) check_post_processor(steps.at(i));
}

}  // namespace

TokenizerDefinition parse_definition(std::string_view json, const std::string& source) {
  const Value document = parse_strictly(json, source);
  const Node root(document, "tokenizer", source);
  root.only_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  if (root.has("version") && root["version"].text() != "1.0")
    root["version"].refuse_value("only \"1.0\" is supported");
  for (const char* key : {"normalizer", "truncation", "padding"}) {
    if (root.has(key)) root[key].refuse_value("only null is supported");
  }
  TokenizerDefinition definition;
  const PieceIds ids = read_model(root["model"], definition);
  read_pre_tokenizer(root, source, definition);
  read_added_tokens(root, ids, definition);
  check_decoder(root);
  if (root.has("post_processor")) check_post_processor(root["post_processor"]);
  definition.content_hash = content_hash(document.dump());
  return definition;
}

}  // namespace stepforge
