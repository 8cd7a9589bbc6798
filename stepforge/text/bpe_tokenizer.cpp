// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_tokenizer.h"

#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/word_cache.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::vector<const AddedToken*> tokens_with(const TokenizerDefinition& definition, bool normalized) {
  std::vector<const AddedToken*> tokens;
  // Of tokens with the same spelling after normalization a special one counts.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : definition.added_tokens) {
      if (token.normalized == normalized && token.special == special) tokens.push_back(&token);
    }
  }
  return tokens;
}

/// "eos_token": "text" or {"content": "text", ...}; absent or null is "".
std::string configured_token(const Json& config, const char* key, const std::string& source) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  throw FormatError(format("{}: {} is {}; expected a string or an object with \"content\"", source, key,
                           found->dump().substr(0, 80)));
}

}  // namespace

/// Encodes a text in steps: added tokens, normalization, added tokens again, words, merges.
class BpeTokenizer::WordEncoder final : public Encoder {
 public:
  explicit WordEncoder(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    require_utf8(text, "text to tokenize");
    const TokenizerDefinition& definition = tokenizer_.definition_;
    cut_at_tokens(text, tokenizer_.first_finder_, ids, [&](std::string_view section) {
      const bool first = section.data() == text.data();
      const std::string_view normalized = definition.normalizer.apply(section, normalized_, scratch_);
      cut_at_tokens(normalized, tokenizer_.second_finder_, ids, [&](std::string_view part) {
        definition.pre_tokenizer.split(part, first && part.data() == normalized.data(), scratch_,
                                       [&](std::string_view piece) { word(piece, ids); });
      });
    });
  }

  template <typename Section>
  static void cut_at_tokens(std::string_view text, const AddedTokenFinder& finder, std::vector<int32_t>& ids,
                            const Section& section) {
    size_t begin = 0;
    AddedTokenFinder::Search search(finder, text);
    while (const auto found = search.next()) {
      if (found->begin > begin) section(text.substr(begin, found->begin - begin));
      ids.push_back(found->token->id);
      begin = found->end;
    }
    if (begin < text.size()) section(text.substr(begin));
  }

  void word(std::string_view text, std::vector<int32_t>& ids) {
    if (const auto known = cache_.find(text)) {
      ids.insert(ids.end(), known->begin(), known->end());
      return;
    }
    const size_t begin = ids.size();
    tokenizer_.model_.append_word(text, ids);
    cache_.insert(text, std::span<const int32_t>(ids).subspan(begin));
  }

  const BpeTokenizer& tokenizer_;
  SplitPattern::Scratch scratch_;
  std::string normalized_;
  WordCache cache_;
};

BpeTokenizer::BpeTokenizer(TokenizerFiles files, const std::string& source)
    : files_(std::move(files)),
      definition_(parse_definition(files_.at("tokenizer.json"), source + "/tokenizer.json")),
      model_(definition_),
      first_finder_(tokens_with(definition_, false)),
      second_finder_(tokens_with(definition_, true)),
      bytes_by_id_(model_.token_bytes()) {
  place_added_tokens();
  read_special_roles(source);
  fingerprint_ = content_hash(
      format("{} eos {} bos {}", definition_.content_hash, eos_.value_or(-1), bos_.value_or(-1)));
}

void BpeTokenizer::place_added_tokens() {
  special_.resize(bytes_by_id_.size());
  for (const AddedToken& token : definition_.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= bytes_by_id_.size()) {
      bytes_by_id_.resize(id + 1);
      special_.resize(id + 1);
    }
    // Hugging Face decodes an added token as byte alphabet too, if it consists of nothing else.
    bytes_by_id_[id] = from_byte_alphabet(token.content).value_or(token.content);
    special_[id] = token.special;
  }
}

std::optional<int32_t> BpeTokenizer::find_token(std::string_view content) const {
  for (const AddedToken& token : definition_.added_tokens) {
    if (token.content == content) return token.id;
  }
  for (size_t id = 0; id < definition_.pieces.size(); ++id) {
    if (definition_.pieces[id] == content) return static_cast<int32_t>(id);
  }
  return std::nullopt;
}

void BpeTokenizer::read_special_roles(const std::string& source) {
  const auto file = files_.find("tokenizer_config.json");
  if (file == files_.end()) {
    eos_ = find_token(kEndOfText);
    return;
  }
  const std::string path = source + "/tokenizer_config.json";
  const Json config = parse_json(file->second, path);
  if (!config.is_object()) throw FormatError(format("{}: expected a JSON object", path));
  const auto role = [&](const char* key) -> std::optional<int32_t> {
    const std::string content = configured_token(config, key, path);
    if (content.empty()) return std::nullopt;
    const std::optional<int32_t> id = find_token(content);
    if (!id)
      throw FormatError(
          format("{}: {} \"{}\" is not in the vocabulary of tokenizer.json", path, key, content));
    return id;
  };
  eos_ = role("eos_token");
  bos_ = role("bos_token");
}

std::unique_ptr<Encoder> BpeTokenizer::encoder() const {
  return std::make_unique<WordEncoder>(*this);
}

std::string_view BpeTokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error(
        format("token id {} is outside the vocabulary of {} tokens; are these ids of another tokenizer?", id,
               vocab_size()));
  }
  return bytes_by_id_[static_cast<size_t>(id)];
}

bool BpeTokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

/// The token as tokenizer.json spells it.
const std::string& BpeTokenizer::spelling(int32_t id) const {
  for (const AddedToken& token : definition_.added_tokens) {
    if (token.id == id) return token.content;
  }
  return definition_.pieces[static_cast<size_t>(id)];
}

std::string BpeTokenizer::default_config() const {
  Json config = Json::object();
  Json added = Json::object();
  for (const AddedToken& token : definition_.added_tokens) {
    append_member(added, std::to_string(token.id),
                  {{"content", token.content},
                   {"lstrip", token.lstrip},
                   {"normalized", token.normalized},
                   {"rstrip", token.rstrip},
                   {"single_word", token.single_word},
                   {"special", token.special}});
  }
  config["added_tokens_decoder"] = added;
  if (bos_) config["bos_token"] = spelling(*bos_);
  config["clean_up_tokenization_spaces"] = false;
  if (eos_) config["eos_token"] = spelling(*eos_);
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

std::string BpeTokenizer::default_special_tokens() const {
  Json roles = Json::object();
  if (bos_) roles["bos_token"] = spelling(*bos_);
  if (eos_) roles["eos_token"] = spelling(*eos_);
  return roles.dump(2) + "\n";
}

void BpeTokenizer::save_pretrained(const fs::path& folder) const {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw Error(format("cannot create the folder {}: {}", folder.string(), failure.message()));
  TokenizerFiles files = files_;
  if (!files.contains("tokenizer_config.json")) files["tokenizer_config.json"] = default_config();
  if (!files.contains("special_tokens_map.json")) files["special_tokens_map.json"] = default_special_tokens();
  for (const auto& [name, content] : files) write_file_atomic(folder / name, content);
}

}  // namespace stepforge
