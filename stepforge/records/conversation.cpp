// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/conversation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/chat_fields.h"
#include "stepforge/records/function_call.h"
#include "stepforge/records/turn_mask.h"

namespace stepforge {

namespace {

constexpr std::array<std::pair<std::string_view, ChatLayout>, 6> kLayouts = {
    {{"messages", ChatLayout::messages},
     {"sharegpt", ChatLayout::sharegpt},
     {"alpaca", ChatLayout::alpaca},
     {"prompt_completion", ChatLayout::prompt_completion},
     {"preference", ChatLayout::preference},
     {"unpaired_preference", ChatLayout::unpaired_preference}}};

void add(Conversation& conversation, Json made, bool counted) {
  conversation.messages.push_back(std::move(made));
  conversation.counted.push_back(counted);
}

/// Adds whether a message is an answer that its mask does not exclude.
void count(std::string_view role, TurnMask mask, const std::string& place, Conversation& conversation) {
  if (mask == TurnMask::excluded && conversation.excluded.empty()) conversation.excluded = place;
  conversation.counted.push_back(role == kAssistantRole && mask != TurnMask::excluded);
}

/// The words of ShareGPT and its relatives.
const std::vector<RoleName>& usual_roles() {
  static const std::vector<RoleName> kRoles = {{"human", "user"},
                                               {"user", "user"},
                                               {"gpt", kAssistantRole},
                                               {"assistant", kAssistantRole},
                                               {"function_call", kCallRole},
                                               {"system", "system"},
                                               {"observation", "tool"},
                                               {"tool", "tool"}};
  return kRoles;
}

/// The words for which `wanted` is true: human, user.
template <typename Wanted>
std::string role_words(const std::vector<RoleName>& roles, const Wanted& wanted) {
  std::vector<std::string> words;
  for (const RoleName& role : roles)
    if (wanted(role.role)) words.push_back(role.name);
  return join(words, ", ");
}

std::string_view role_of(const std::string& word, const std::vector<RoleName>& roles,
                         const std::string& place) {
  for (const RoleName& role : roles)
    if (role.name == word) return role.role;
  throw FormatError(format("{} is {}; known are {}", place, quoted_for_message(word),
                           role_words(roles, [](std::string_view) { return true; })));
}

/// A message whose data set has other words for its role, or other keys, in our words.
Json in_usual_words(Json made, const ChatKeys& keys, const std::string& place) {
  if (keys.roles.empty()) return made;
  const std::string word = text_of(made, keys.role);
  const std::string_view role = role_of(word, keys.roles, format("{}.{}", place, keys.role));
  if (role == kCallRole) return read_function_call(text_of(made, keys.content), place);
  Json content = made.contains(keys.content) ? made[keys.content] : Json();
  made.erase(keys.role);
  made.erase(keys.content);
  made["role"] = role;
  made["content"] = std::move(content);
  return made;
}

void read_messages(const Json& list, const ChatKeys& keys, Conversation& conversation) {
  if (!list.is_array()) throw FormatError("the messages are not a list");
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) throw FormatError(format("messages[{}] is not an object", i));
    const std::string place = format("messages[{}]", i);
    Json made = list[i];
    const TurnMask mask = take_turn_mask(made, place);
    made = in_usual_words(std::move(made), keys, place);
    count(text_of(made, "role"), mask, place, conversation);
    conversation.messages.push_back(std::move(made));
  }
}

/// Turn `number`, counted after the system message, must be a question if that is even, else an answer.
void require_turn(size_t number, std::string_view role, const std::string& word,
                  const std::vector<RoleName>& roles, const std::string& place) {
  const bool question = number % 2 == 0;
  const auto is_due = [&](std::string_view found) {
    return question ? found == "user" || found == "tool" : found == kAssistantRole || found == kCallRole;
  };
  if (is_due(role)) return;
  throw FormatError(format(
      "{} is {}, but it is the turn of {}: questions and answers must alternate; join turns that follow "
      "each other, write them as \"messages\", or set data.on_bad_record = \"skip\"",
      place, quoted_for_message(word), role_words(roles, is_due)));
}

Conversation of_messages(Json messages) {
  Conversation conversation;
  for (Json& made : messages) {
    const bool counted = made["role"] == kAssistantRole;
    add(conversation, std::move(made), counted);
  }
  return conversation;
}

std::vector<std::string> keys_or(const std::vector<std::string>& keys,
                                 const std::vector<std::string>& usual) {
  return keys.empty() ? usual : keys;
}

Conversation read_sharegpt(const Json& record, const ChatKeys& keys) {
  const auto lists = keys_or(keys.messages, {"conversations", "conversation"});
  const Json* turns = find_member(record, lists);
  if (turns == nullptr || !turns->is_array())
    throw FormatError(format("no list \"{}\"; it has {}", lists.front(), keys_of(record)));
  Conversation conversation = of_messages(read_sharegpt_turns(*turns, keys));
  conversation.counted.clear();
  for (size_t i = 0; i < turns->size(); ++i) {
    Json turn = (*turns)[i];
    const std::string place = format("{}[{}]", lists.front(), i);
    count(text_of(conversation.messages[i], "role"), take_turn_mask(turn, place), place, conversation);
  }
  if (add_system(record, keys.system, conversation.messages))
    conversation.counted.insert(conversation.counted.begin(), false);
  conversation.tools = tools_of(record, keys.tools);
  return conversation;
}

Conversation read_alpaca(const Json& record, const ChatKeys& keys) {
  Conversation conversation = of_messages(read_alpaca_prompt(record, keys));
  add(conversation, chat_message(kAssistantRole, text_of(record, keys.response)), true);
  return conversation;
}

Conversation read_prompt_completion(const Json& record, const ChatKeys& keys) {
  Conversation conversation;
  const Json* prompt = find_member(record, "prompt");
  if (prompt != nullptr && prompt->is_array()) {
    read_messages(*prompt, keys, conversation);
    std::fill(conversation.counted.begin(), conversation.counted.end(), false);
    read_messages(member_of(record, "completion"), keys, conversation);
    conversation.tools = tools_of(record, keys.tools);
    return conversation;
  }
  conversation.prompt = text_of(record, "prompt");
  conversation.completion = text_of(record, "completion");
  return conversation;
}

Conversation read_layout(const Json& record, ChatLayout layout, const ChatKeys& keys) {
  switch (layout) {
    case ChatLayout::messages: {
      const auto lists = keys_or(keys.messages, {"messages", "conversations", "dialogs"});
      const Json* list = find_member(record, lists);
      if (list == nullptr) throw FormatError(format("no \"{}\"; it has {}", lists.front(), keys_of(record)));
      Conversation conversation;
      read_messages(*list, keys, conversation);
      if (add_system(record, keys.system, conversation.messages))
        conversation.counted.insert(conversation.counted.begin(), false);
      conversation.tools = tools_of(record, keys.tools);
      return conversation;
    }
    case ChatLayout::sharegpt:
      return read_sharegpt(record, keys);
    case ChatLayout::alpaca:
      return read_alpaca(record, keys);
    case ChatLayout::prompt_completion:
      return read_prompt_completion(record, keys);
    case ChatLayout::preference:
    case ChatLayout::unpaired_preference:
      break;
  }
  throw Error("answers that are judged are no conversation");
}

}  // namespace

std::optional<ChatLayout> find_chat_layout(std::string_view word) {
  for (const auto& [name, layout] : kLayouts)
    if (name == word) return layout;
  return std::nullopt;
}

std::string_view chat_layout_name(ChatLayout layout) {
  return kLayouts.at(static_cast<size_t>(layout)).first;
}

LossOn parse_loss_on(std::string_view word) {
  if (word == "assistant") return LossOn::assistant;
  if (word == "last") return LossOn::last;
  if (word == "all") return LossOn::all;
  throw UsageError(format("loss_on \"{}\": expected \"assistant\", \"last\" or \"all\"", word));
}

Json read_sharegpt_turns(const Json& turns, const ChatKeys& keys, size_t first_turn) {
  const std::vector<RoleName>& roles = keys.roles.empty() ? usual_roles() : keys.roles;
  Json messages = Json::array();
  size_t number = first_turn;
  for (size_t i = 0; i < turns.size(); ++i) {
    const Json& turn = turns[i];
    if (!turn.is_object()) throw FormatError(format("conversations[{}] is not an object", i));
    const std::string place = format("conversations[{}].{}", i, keys.role);
    const std::string& word = text_of(turn, keys.role);
    const std::string_view role = role_of(word, roles, place);
    if (i > 0 || role != "system") require_turn(number++, role, word, roles, place);
    const std::string& text = text_of(turn, keys.content);
    messages.push_back(role == kCallRole
                           ? read_function_call(text, format("conversations[{}].{}", i, keys.content))
                           : chat_message(role, text));
  }
  return messages;
}

Json read_alpaca_prompt(const Json& record, const ChatKeys& keys) {
  Json messages = Json::array();
  add_system(record, keys.system, messages);
  if (const Json* history = find_member(record, keys.history); history != nullptr) {
    const auto is_pair = [](const Json& turn) {
      return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
    };
    if (!history->is_array() || !std::all_of(history->begin(), history->end(), is_pair))
      throw FormatError(format("\"{}\" is not a list of pairs [question, answer]", keys.history));
    for (const Json& turn : *history) {
      messages.push_back(chat_message("user", turn[0].get<std::string>()));
      messages.push_back(chat_message(kAssistantRole, turn[1].get<std::string>()));
    }
  }
  std::string question = text_of(record, keys.prompt);
  const std::string query = text_or_empty(record, keys.query);
  if (!query.empty()) question += (question.empty() ? "" : "\n") + query;
  messages.push_back(chat_message("user", std::move(question)));
  return messages;
}

Conversation read_conversation(const Json& record, ChatLayout layout, LossOn loss_on, const ChatKeys& keys) {
  if (!record.is_object()) throw FormatError("the record is not an object");
  Conversation conversation = read_layout(record, layout, keys);
  if (conversation.prompt || loss_on == LossOn::all) return conversation;
  auto& counted = conversation.counted;
  const auto last = std::find(counted.rbegin(), counted.rend(), true);
  if (last == counted.rend()) throw FormatError("no message of the assistant counts in the loss");
  if (loss_on == LossOn::last) std::fill(last + 1, counted.rend(), false);
  return conversation;
}

}  // namespace stepforge
