// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/preference.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/records/chat_fields.h"

namespace stepforge {

namespace {

constexpr size_t kAnswerTurn = 1;

/// A list of messages, or one of them, in either spelling.
Json read_list(const Json& value, const std::string& name, const ChatKeys& keys, size_t first_turn) {
  Json list = value.is_object() ? Json::array({value}) : value;
  if (!list.is_array()) throw FormatError(format("\"{}\" is neither a text nor messages", name));
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].is_object()) throw FormatError(format("{}[{}] is not an object", name, i));
  if (list.empty() || find_member(list.front(), "role") == nullptr)
    return read_sharegpt_turns(list, keys, first_turn);
  for (const Json& message : list) text_of(message, "role");
  return list;
}

Json read_answer(const Json& record, const std::string& name, const ChatKeys& keys) {
  const Json& value = member_of(record, name);
  if (value.is_string()) return Json::array({chat_message(kAssistantRole, value.get<std::string>())});
  Json messages = read_list(value, name, keys, kAnswerTurn);
  if (messages.empty() || messages.back()["role"] != kAssistantRole)
    throw FormatError(format("\"{}\" does not end with a message of the assistant", name));
  return messages;
}

/// Where the prompt that two texts begin with ends: after the last "Assistant:", else after the last white space.
size_t end_of_common_text(std::string_view chosen, std::string_view rejected) {
  constexpr std::string_view kMark = "Assistant:";
  const auto differ = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
  const std::string_view common = chosen.substr(0, static_cast<size_t>(differ.first - chosen.begin()));
  if (const size_t mark = common.rfind(kMark); mark != std::string_view::npos) return mark + kMark.size();
  return common.find_last_of(" \t\r\n") + 1;  // 0 if there is none
}

void split_texts(const std::string& chosen, const std::string& rejected, PreferencePair& pair) {
  const size_t end = end_of_common_text(chosen, rejected);
  pair.prompt = chosen.substr(0, end);
  pair.chosen = chosen.substr(end);
  pair.rejected = rejected.substr(end);
}

void split_lists(const Json& chosen, const Json& rejected, PreferencePair& pair) {
  const auto differ = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
  pair.prompt = Json::array();
  pair.chosen = Json::array();
  pair.rejected = Json::array();
  std::copy(chosen.begin(), differ.first, std::back_inserter(pair.prompt));
  std::copy(differ.first, chosen.end(), std::back_inserter(pair.chosen));
  std::copy(differ.second, rejected.end(), std::back_inserter(pair.rejected));
}

/// For records without a prompt.
PreferencePair read_common_prompt(const Json& record, const ChatKeys& keys) {
  const Json& chosen = member_of(record, keys.chosen);
  const Json& rejected = member_of(record, keys.rejected);
  PreferencePair pair;
  if (chosen.is_string() && rejected.is_string()) {
    split_texts(chosen.get_ref<const std::string&>(), rejected.get_ref<const std::string&>(), pair);
  } else if (chosen.is_array() && rejected.is_array()) {
    split_lists(read_list(chosen, keys.chosen, keys, 0), read_list(rejected, keys.rejected, keys, 0), pair);
  } else {
    throw FormatError(
        format("no prompt, and \"{}\" and \"{}\" are neither two texts nor two lists of messages",
               keys.chosen, keys.rejected));
  }
  if (pair.prompt.empty() || pair.prompt == Json(""))
    throw FormatError(
        format("no prompt, and \"{}\" and \"{}\" do not begin alike", keys.chosen, keys.rejected));
  if (pair.chosen.empty() || pair.rejected.empty() || pair.chosen == pair.rejected)
    throw FormatError(
        format("no prompt, and \"{}\" and \"{}\" do not differ in their ends", keys.chosen, keys.rejected));
  return pair;
}

PreferencePair answers_to(Json prompt, const Json& record, const ChatKeys& keys) {
  return {.prompt = std::move(prompt),
          .chosen = read_answer(record, keys.chosen, keys),
          .rejected = read_answer(record, keys.rejected, keys),
          .tools = nullptr};
}

/// Whether both answers are lists that begin with what comes before an answer, so that the prompt is in them too.
bool are_whole(const Json& record, const ChatKeys& keys) {
  for (const std::string& name : {keys.chosen, keys.rejected}) {
    const Json& answer = member_of(record, name);
    if (!answer.is_array() || answer.empty()) return false;
    const Json list = read_list(answer, name, keys, 0);
    if (list.front()["role"] == kAssistantRole) return false;
  }
  return true;
}

PreferencePair read_pair(const Json& record, const ChatKeys& keys) {
  if (find_member(record, keys.prompt) != nullptr)
    return answers_to(read_alpaca_prompt(record, keys), record, keys);
  const auto lists =
      keys.messages.empty() ? std::vector<std::string>{"conversations", "messages"} : keys.messages;
  if (const Json* list = find_member(record, lists); list != nullptr) {
    Json prompt = read_list(*list, lists.front(), keys, 0);
    add_system(record, keys.system, prompt);
    return answers_to(std::move(prompt), record, keys);
  }
  const Json* prompt = find_member(record, "prompt");
  if (prompt == nullptr) return read_common_prompt(record, keys);
  if (prompt->is_string() && are_whole(record, keys)) return read_common_prompt(record, keys);
  if (!prompt->is_string()) return answers_to(read_list(*prompt, "prompt", keys, 0), record, keys);
  if (!member_of(record, keys.chosen).is_string())
    return answers_to(Json::array({chat_message("user", prompt->get<std::string>())}), record, keys);
  return {.prompt = *prompt,
          .chosen = text_of(record, keys.chosen),
          .rejected = text_of(record, keys.rejected),
          .tools = nullptr};
}

/// A truth value, or 0 or 1.
bool read_label(const Json& record, const ChatKeys& keys) {
  const Json* const label = find_member(record, std::vector<std::string>{keys.label, "kto_tag"});
  if (label == nullptr) throw FormatError(format("no \"{}\"; it has {}", keys.label, keys_of(record)));
  if (label->is_boolean()) return label->get<bool>();
  if (*label == 0 || *label == 1) return *label == 1;
  throw FormatError(format("\"{}\" is neither true nor false", keys.label));
}

/// A conversation whose last message of the assistant, or completion, counts.
Conversation read_answered(const Json& record, const ChatKeys& keys) {
  if (find_member(record, keys.prompt) != nullptr)
    return read_conversation(record, ChatLayout::alpaca, LossOn::last, keys);
  std::vector<std::string> lists = keys.messages;
  if (lists.empty()) lists = {"messages", "conversations", "dialogs"};
  const auto found = std::ranges::find_if(
      lists, [&](const std::string& name) { return find_member(record, name) != nullptr; });
  if (found == lists.end())
    return read_conversation(record, ChatLayout::prompt_completion, LossOn::assistant, keys);
  const Json& list = record[*found];
  // Messages may have other words for their roles.
  const bool has_turns = keys.role != "role" && list.is_array() && !list.empty() &&
                         list.front().is_object() && find_member(list.front(), keys.role) != nullptr;
  ChatKeys own = keys;
  own.messages = {*found};
  Conversation conversation =
      read_conversation(record, has_turns ? ChatLayout::sharegpt : ChatLayout::messages, LossOn::last, own);
  if (!conversation.counted.back())
    throw FormatError(format("\"{}\" does not end with a message of the assistant that counts", *found));
  return conversation;
}

}  // namespace

JudgedAnswer read_judged_answer(const Json& record, const ChatKeys& keys) {
  if (!record.is_object()) throw FormatError("the record is not an object");
  return {.conversation = read_answered(record, keys), .desirable = read_label(record, keys)};
}

PreferencePair read_preference(const Json& record, const ChatKeys& keys) {
  if (!record.is_object()) throw FormatError("the record is not an object");
  PreferencePair pair = read_pair(record, keys);
  pair.tools = tools_of(record, keys.tools);
  return pair;
}

}  // namespace stepforge
