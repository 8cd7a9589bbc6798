// SPDX-License-Identifier: Apache-2.0
// Conversations in the layouts of the usual chat and instruction data sets, read into one form.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"

namespace stepforge {

/// The layouts of a record, with their usual keys.
enum class ChatLayout {
  /// {"messages": [{"role", "content", ...}], "tools": [...]}, as OpenAI and TRL have it; the list may also be
  /// called "conversations" or "dialogs". Turns of this and the next layout may say whether they are learned
  /// (records/turn_mask.h).
  messages,
  /// {"conversations": [{"from", "value"}], "system": "...", "tools": "..."}. After the system message, questions
  /// (human, observation) and answers (gpt, function_call) alternate. The text of function_call holds the calls as JSON
  /// (records/function_call.h).
  sharegpt,
  /// {"instruction", "input", "output", "system", "history": [[question, answer], ...]}.
  alpaca,
  /// {"prompt", "completion"}, both texts or both lists of messages, as TRL has it.
  prompt_completion,
  /// A prompt with a better and a worse answer; see records/preference.h.
  preference,
  /// A prompt with one answer, and whether that is desirable; see records/preference.h.
  unpaired_preference,
};

/// "messages", "sharegpt", "alpaca", "prompt_completion", "preference" or "unpaired_preference"; nullopt for other words.
std::optional<ChatLayout> find_chat_layout(std::string_view word);
std::string_view chat_layout_name(ChatLayout layout);

/// The word with which a data set names a role.
struct RoleName {
  std::string name;
  std::string_view role;  ///< "user", "assistant", "tool", "system" or kCallRole

  friend bool operator==(const RoleName&, const RoleName&) = default;
};

/// What a data set calls the parts of its records; the names of LLaMA-Factory's columns and tags. "" for a part that
/// may be absent means that it is not read.
struct ChatKeys {
  std::string prompt = "instruction";
  std::string query = "input";
  std::string response = "output";
  std::string history = "history";
  std::vector<std::string> messages{};  ///< the first that a record has; empty: the usual ones of the layout
  std::string system = "system";
  std::string tools = "tools";
  std::string chosen = "chosen";
  std::string rejected = "rejected";
  std::string label = "label";    ///< whether an answer is desirable
  std::string role = "from";      ///< of a turn of ShareGPT
  std::string content = "value";  ///< of a turn of ShareGPT
  std::vector<RoleName> roles{};  ///< of ShareGPT; empty: the usual ones

  friend bool operator==(const ChatKeys&, const ChatKeys&) = default;
};

/// What a model is to learn from.
enum class LossOn {
  assistant,  ///< every message of the assistant
  last,       ///< the last message of the assistant
  all,        ///< everything
};

/// "assistant", "last" or "all"; throws UsageError for anything else.
LossOn parse_loss_on(std::string_view word);

struct Conversation {
  Json messages = Json::array();  ///< as a chat template reads them
  Json tools;                     ///< null if there are none
  std::vector<bool> counted;      ///< [messages] whether it counts in the loss
  std::string excluded;  ///< the first turn that its own mask excludes: "messages[1]"; empty if there is none
  /// Instead of messages: a text without a template, of which only the completion counts.
  std::optional<std::string> prompt;
  std::string completion;
};

/// Reads one record. Throws FormatError naming the key and the fault, without a location: something is not of
/// the layout, a role is unknown or out of turn, there is no message of an assistant. Throws Error for
/// ChatLayout::preference and unpaired_preference, which records/preference.h reads.
Conversation read_conversation(const Json& record, ChatLayout layout, LossOn loss_on,
                               const ChatKeys& keys = {});

/// The messages of a list of turns {"from", "value"}; a system message may come first. `first_turn`: 0 if a question is
/// due, 1 if an answer is. Throws FormatError as above.
Json read_sharegpt_turns(const Json& turns, const ChatKeys& keys, size_t first_turn = 0);
/// The question of an Alpaca record: its system message and history, then instruction and input.
Json read_alpaca_prompt(const Json& record, const ChatKeys& keys);

}  // namespace stepforge
