// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/conversation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr std::string_view kAssistant = "assistant";

/// The value of the first of `keys` that the record has; null if it has none.
const Json* find_member(const Json& record, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = record.find(key);
    if (found != record.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

std::string keys_of(const Json& record) {
  std::vector<std::string> keys;
  for (const auto& member : record.items()) keys.push_back(format("\"{}\"", member.key()));
  return keys.empty() ? "no keys" : join(keys, ", ");
}

const std::string& text_of(const Json& record, const char* key) {
  const Json* value = find_member(record, {key});
  if (value == nullptr) throw FormatError(format("no \"{}\"; it has {}", key, keys_of(record)));
  if (!value->is_string()) throw FormatError(format("\"{}\" is not a string", key));
  return value->get_ref<const std::string&>();
}

std::string text_or_empty(const Json& record, const char* key) {
  return find_member(record, {key}) == nullptr ? "" : text_of(record, key);
}

/// Lists of tools are given as JSON, or as a string that holds JSON.
Json tools_of(const Json& record) {
  const Json* value = find_member(record, {"tools"});
  if (value == nullptr) return nullptr;
  Json tools = *value;
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
    tools = parse_json(text, "\"tools\"");
  }
  if (!tools.is_array()) throw FormatError("\"tools\" is not a list");
  if (tools.empty()) return nullptr;
  return tools;
}

Json message(std::string_view role, std::string content) {
  Json made = Json::object();
  made["role"] = role;
  made["content"] = std::move(content);
  return made;
}

void add(Conversation& conversation, Json made, bool counted) {
  conversation.messages.push_back(std::move(made));
  conversation.counted.push_back(counted);
}

/// Whether a message is to be learned from, by its own flag.
bool wants_loss(const Json& made, size_t index) {
  if (const Json* flag = find_member(made, {"loss"}); flag != nullptr) {
    if (!flag->is_boolean()) throw FormatError(format("messages[{}].loss is not true or false", index));
    return flag->get<bool>();
  }
  const Json* weight = find_member(made, {"weight"});
  if (weight == nullptr) return true;
  if (!weight->is_number() || (*weight != 0 && *weight != 1))
    throw FormatError(format("messages[{}].weight is neither 0 nor 1", index));
  return *weight == 1;
}

void read_messages(const Json& list, Conversation& conversation) {
  if (!list.is_array()) throw FormatError("the messages are not a list");
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) throw FormatError(format("messages[{}] is not an object", i));
    Json made = list[i];
    const std::string& role = text_of(list[i], "role");
    const bool counted = role == kAssistant && wants_loss(made, i);
    made.erase("loss");
    made.erase("weight");
    add(conversation, std::move(made), counted);
  }
}

/// The roles of ShareGPT and its relatives.
std::string_view role_of(const std::string& from, size_t index) {
  struct Role {
    std::string_view name;
    std::string_view role;
  };
  static constexpr std::array kRoles = {Role{"human", "user"},
                                        Role{"user", "user"},
                                        Role{"gpt", kAssistant},
                                        Role{"assistant", kAssistant},
                                        Role{"function_call", kAssistant},
                                        Role{"system", "system"},
                                        Role{"observation", "tool"},
                                        Role{"tool", "tool"}};
  for (const Role& role : kRoles)
    if (role.name == from) return role.role;
  throw FormatError(format(
      "conversations[{}].from is \"{}\"; known are human, user, gpt, assistant, function_call, system, "
      "observation and tool",
      index, from));
}

Conversation read_sharegpt(const Json& record) {
  Conversation conversation;
  const Json* turns = find_member(record, {"conversations", "conversation"});
  if (turns == nullptr || !turns->is_array())
    throw FormatError(format("no list \"conversations\"; it has {}", keys_of(record)));
  if (std::string system = text_or_empty(record, "system"); !system.empty())
    add(conversation, message("system", std::move(system)), false);
  for (size_t i = 0; i < turns->size(); ++i) {
    const Json& turn = (*turns)[i];
    if (!turn.is_object()) throw FormatError(format("conversations[{}] is not an object", i));
    const std::string_view role = role_of(text_of(turn, "from"), i);
    add(conversation, message(role, text_of(turn, "value")), role == kAssistant);
  }
  conversation.tools = tools_of(record);
  return conversation;
}

Conversation read_alpaca(const Json& record) {
  Conversation conversation;
  if (std::string system = text_or_empty(record, "system"); !system.empty())
    add(conversation, message("system", std::move(system)), false);
  if (const Json* history = find_member(record, {"history"}); history != nullptr) {
    for (const Json& turn : *history) {
      if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
        throw FormatError("\"history\" is not a list of pairs [question, answer]");
      add(conversation, message("user", turn[0].get<std::string>()), false);
      add(conversation, message(kAssistant, turn[1].get<std::string>()), true);
    }
  }
  std::string question = text_of(record, "instruction");
  const std::string input = text_or_empty(record, "input");
  if (!input.empty()) question += (question.empty() ? "" : "\n") + input;
  add(conversation, message("user", std::move(question)), false);
  add(conversation, message(kAssistant, text_of(record, "output")), true);
  return conversation;
}

Conversation read_prompt_completion(const Json& record) {
  Conversation conversation;
  const Json* prompt = find_member(record, {"prompt"});
  if (prompt != nullptr && prompt->is_array()) {
    read_messages(*prompt, conversation);
    std::fill(conversation.counted.begin(), conversation.counted.end(), false);
    const Json* completion = find_member(record, {"completion"});
    if (completion == nullptr) throw FormatError(format("no \"completion\"; it has {}", keys_of(record)));
    read_messages(*completion, conversation);
    conversation.tools = tools_of(record);
    return conversation;
  }
  conversation.prompt = text_of(record, "prompt");
  conversation.completion = text_of(record, "completion");
  return conversation;
}

Conversation read_layout(const Json& record, ChatLayout layout) {
  switch (layout) {
    case ChatLayout::messages: {
      const Json* list = find_member(record, {"messages", "conversations", "dialogs"});
      if (list == nullptr) throw FormatError(format("no \"messages\"; it has {}", keys_of(record)));
      Conversation conversation;
      read_messages(*list, conversation);
      conversation.tools = tools_of(record);
      return conversation;
    }
    case ChatLayout::sharegpt:
      return read_sharegpt(record);
    case ChatLayout::alpaca:
      return read_alpaca(record);
    case ChatLayout::prompt_completion:
      return read_prompt_completion(record);
  }
  throw Error("unknown chat layout");
}

}  // namespace

std::optional<ChatLayout> find_chat_layout(std::string_view word) {
  if (word == "messages") return ChatLayout::messages;
  if (word == "sharegpt") return ChatLayout::sharegpt;
  if (word == "alpaca") return ChatLayout::alpaca;
  if (word == "prompt_completion") return ChatLayout::prompt_completion;
  return std::nullopt;
}

LossOn parse_loss_on(std::string_view word) {
  if (word == "assistant") return LossOn::assistant;
  if (word == "last") return LossOn::last;
  if (word == "all") return LossOn::all;
  throw UsageError(format("loss_on \"{}\": expected \"assistant\", \"last\" or \"all\"", word));
}

Conversation read_conversation(const Json& record, ChatLayout layout, LossOn loss_on) {
  if (!record.is_object()) throw FormatError("the record is not an object");
  Conversation conversation = read_layout(record, layout);
  if (conversation.prompt || loss_on == LossOn::all) return conversation;
  auto& counted = conversation.counted;
  const auto last = std::find(counted.rbegin(), counted.rend(), true);
  if (last == counted.rend()) throw FormatError("no message of the assistant counts in the loss");
  if (loss_on == LossOn::last) std::fill(last + 1, counted.rend(), false);
  return conversation;
}

}  // namespace stepforge
