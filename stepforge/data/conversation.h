// SPDX-License-Identifier: Apache-2.0
// Conversations in the layouts of the usual chat and instruction data sets, read into one form.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"

namespace stepforge {

/// The layouts of a record.
enum class ChatLayout {
  /// {"messages": [{"role", "content", ...}], "tools": [...]}, as OpenAI and TRL have it; the list may also be
  /// called "conversations" or "dialogs". A message may say "loss": false (XTuner) or "weight": 0 (OpenAI).
  messages,
  /// {"conversations": [{"from", "value"}], "system": "...", "tools": "..."}.
  sharegpt,
  /// {"instruction", "input", "output", "system", "history": [[question, answer], ...]}.
  alpaca,
  /// {"prompt", "completion"}, both texts or both lists of messages, as TRL has it.
  prompt_completion,
};

/// "messages", "sharegpt", "alpaca" or "prompt_completion"; nullopt for other words.
std::optional<ChatLayout> find_chat_layout(std::string_view word);

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
  /// Instead of messages: a text without a template, of which only the completion counts.
  std::optional<std::string> prompt;
  std::string completion;
};

/// Reads one record. Throws FormatError naming the key and the fault, without a location: something is not of
/// the layout, a role is unknown, there is no message of an assistant.
Conversation read_conversation(const Json& record, ChatLayout layout, LossOn loss_on);

}  // namespace stepforge
