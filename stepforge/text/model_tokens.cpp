// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/model_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/text/vocabulary.h"

namespace stepforge {

namespace {

/// In the order in which transformers adds them.
constexpr std::array kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                               "pad_token", "cls_token", "mask_token"};

bool is_common_role(std::string_view key) {
  return std::find(kRoles.begin(), kRoles.end(), key) != kRoles.end();
}

std::string place_of(const JsonReader& value) {
  return format("{}: \"{}\"", value.source(), value.path());
}

ListedToken token_of_text(const std::string& content, bool special, std::string where) {
  ListedToken token{.content = content, .id = std::nullopt, .where = std::move(where), .special = special};
  token.normalized = !special;
  return token;
}

ListedToken token_of_object(const JsonReader& object, bool special_unless_said) {
  ListedToken token = token_of_text(object["content"].text(),
                                    object.boolean_or("special", special_unless_said), place_of(object));
  token.normalized = object.boolean_or("normalized", !token.special);
  token.single_word = object.boolean_or("single_word", false);
  token.lstrip = object.boolean_or("lstrip", false);
  token.rstrip = object.boolean_or("rstrip", false);
  return token;
}

/// "text" or {"content": "text", ...}.
ListedToken token_of(const JsonReader& value, bool special_object) {
  return value.json().is_object() ? token_of_object(value, special_object)
                                  : token_of_text(value.text(), true, place_of(value));
}

/// Reads the files, the most important last.
class Merge {
 public:
  Merge(const TokenizerFiles& files, const std::string& folder) : files_(files), folder_(folder) {}

  ModelTokens tokens() {
    if (const auto config = open("tokenizer_config.json")) {
      const JsonReader reader(*config, path("tokenizer_config.json"));
      read_roles(reader, false);
      read_extra(reader);
      if (reader.has("added_tokens_decoder")) {
        read_decoder(reader["added_tokens_decoder"]);
        return finish();
      }
    }
    result_.roles_are_special = true;
    if (const auto map = open("special_tokens_map.json")) {
      const JsonReader reader(*map, path("special_tokens_map.json"));
      read_roles(reader, true);
      read_extra(reader);
    }
    if (const auto added = open("added_tokens.json"))
      read_added(JsonReader(*added, path("added_tokens.json")));
    return finish();
  }

 private:
  using Role = std::pair<std::string, ListedToken>;

  std::string path(const char* name) const { return folder_ + "/" + name; }

  std::optional<Json> open(const char* name) const {
    const auto found = files_.find(name);
    if (found == files_.end()) return std::nullopt;
    Json document = parse_json(found->second, path(name));
    JsonReader(document, path(name)).object();
    return document;
  }

  /// Roles of a model's own, such as image_token, are strings whose key ends so.
  void read_roles(const JsonReader& file, bool special_objects) {
    for (const auto& [key, value] : file.json().items()) {
      const bool common = is_common_role(key);
      if (value.is_null() || !(common || (key.ends_with("_token") && value.is_string()))) continue;
      ListedToken token = token_of(file[key], special_objects);
      token.is_reference =
          !special_objects && value.is_string() && (key == "eos_token" || key == "bos_token");
      set_role(key, std::move(token));
    }
  }

  void set_role(const std::string& key, ListedToken token) {
    token.special = true;
    const auto known = std::ranges::find(roles_, key, &Role::first);
    if (known == roles_.end())
      roles_.emplace_back(key, std::move(token));
    else
      known->second = std::move(token);
  }

  /// extra_special_tokens, or additional_special_tokens, as they were called before: a list, or an object of roles.
  void read_extra(const JsonReader& file) {
    const auto given = [&](const char* key) { return file.has(key) && !file[key].json().empty(); };
    const char* name = given("extra_special_tokens") ? "extra_special_tokens" : "additional_special_tokens";
    if (!given(name)) return;
    const JsonReader extra = file[name];
    if (extra.json().is_object()) {
      for (const auto& [key, value] : extra.json().items())
        if (!value.is_null()) set_role(key, token_of(extra[key], true));
      return;
    }
    // Tokens of the new name are joined, those of the old one are read only where there are none.
    if (name == std::string_view("additional_special_tokens") && !extra_.empty()) return;
    for (size_t i = 0; i < extra.size(); ++i) extra_.push_back(token_of(extra.at(i), false));
  }

  void read_decoder(const JsonReader& decoder) {
    for (const auto& [key, value] : decoder.object().json().items()) {
      int64_t id = -1;
      const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (fault != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMaxVocabulary)
        decoder.fail(format("{} is not an id with its token", json_excerpt(Json(key))));
      ListedToken token = token_of_object(decoder[key].object(), false);
      token.id = id;
      result_.listed.push_back(std::move(token));
    }
    by_id(result_.listed);
  }

  /// The text of each token with its id.
  void read_added(const JsonReader& added) {
    for (const auto& [content, value] : added.json().items()) {
      const bool special =
          std::ranges::any_of(roles_, [&](const auto& role) { return role.second.content == content; }) ||
          std::ranges::any_of(extra_, [&](const auto& token) { return token.content == content; });
      ListedToken token = token_of_text(content, special, added.source());
      token.id = added[content].integer(0, kMaxVocabulary - 1);
      result_.further.push_back(std::move(token));
    }
    by_id(result_.further);
  }

  static void by_id(std::vector<ListedToken>& tokens) {
    std::ranges::stable_sort(tokens, {}, [](const ListedToken& token) { return token.id.value_or(0); });
  }

  ModelTokens finish() {
    for (const char* name : kRoles)
      if (const auto role = std::ranges::find(roles_, name, &Role::first); role != roles_.end())
        add_role(*role);
    for (const Role& role : roles_)
      if (!is_common_role(role.first)) add_role(role);
    for (ListedToken& token : extra_)
      if (!token.content.empty()) result_.further.push_back(std::move(token));
    return std::move(result_);
  }

  void add_role(const Role& role) {
    if (role.second.content.empty()) return;
    result_.roles[role.first] = role.second.content;
    result_.further.push_back(role.second);
  }

  const TokenizerFiles& files_;
  const std::string& folder_;
  ModelTokens result_;
  std::vector<Role> roles_;
  std::vector<ListedToken> extra_;
};

}  // namespace

ModelTokens read_model_tokens(const TokenizerFiles& files, const std::string& folder) {
  return Merge(files, folder).tokens();
}

}  // namespace stepforge
