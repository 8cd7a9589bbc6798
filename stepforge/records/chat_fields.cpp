// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/chat_fields.h"

#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

const Json* find_member(const Json& record, const std::string& key) {
  if (key.empty()) return nullptr;
  const auto found = record.find(key);
  return found == record.end() || found->is_null() ? nullptr : &*found;
}

const Json* find_member(const Json& record, const std::vector<std::string>& keys) {
  for (const std::string& key : keys)
    if (const Json* found = find_member(record, key); found != nullptr) return found;
  return nullptr;
}

const Json& member_of(const Json& record, const std::string& key) {
  const Json* found = find_member(record, key);
  if (found == nullptr) throw FormatError(format("no \"{}\"; it has {}", key, keys_of(record)));
  return *found;
}

std::string keys_of(const Json& record) {
  constexpr size_t kShown = 20;
  std::vector<std::string> keys;
  for (const auto& member : record.items()) {
    if (keys.size() == kShown) {
      keys.emplace_back("...");
      break;
    }
    keys.push_back(quoted_for_message(member.key()));
  }
  return keys.empty() ? "no keys" : join(keys, ", ");
}

const std::string& text_of(const Json& record, const std::string& key) {
  const Json& value = member_of(record, key);
  if (!value.is_string()) throw FormatError(format("\"{}\" is not a string", key));
  return value.get_ref<const std::string&>();
}

std::string text_or_empty(const Json& record, const std::string& key) {
  return find_member(record, key) == nullptr ? "" : text_of(record, key);
}

Json tools_of(const Json& record, const std::string& key) {
  const Json* value = find_member(record, key);
  if (value == nullptr) return nullptr;
  Json tools = *value;
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
    tools = parse_json(text, format("\"{}\"", key));
  }
  if (!tools.is_array()) throw FormatError(format("\"{}\" is not a list", key));
  if (tools.empty()) return nullptr;
  return tools;
}

Json chat_message(std::string_view role, std::string content) {
  Json made = Json::object();
  made["role"] = role;
  made["content"] = std::move(content);
  return made;
}

bool add_system(const Json& record, const std::string& key, Json& messages) {
  std::string system = text_or_empty(record, key);
  if (system.empty() || (!messages.empty() && messages.front()["role"] == "system")) return false;
  messages.insert(messages.begin(), chat_message("system", std::move(system)));
  return true;
}

}  // namespace stepforge
