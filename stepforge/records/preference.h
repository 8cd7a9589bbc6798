// SPDX-License-Identifier: Apache-2.0
// Preference data: a prompt with a better and a worse answer, or with one that is desirable or not.
#pragma once

#include "stepforge/base/json.h"
#include "stepforge/records/conversation.h"

namespace stepforge {

/// All three are lists of messages, neither of the answers empty, or all three are texts that take no template.
struct PreferencePair {
  Json prompt;
  Json chosen;
  Json rejected;
  Json tools;  ///< null if there are none
};

/// Reads one record with the answers "chosen" and "rejected": texts, one message, or lists of messages. The prompt is
/// one of these, the first that the record has:
///  - "instruction" and "input", as Alpaca has them (LLaMA-Factory);
///  - "conversations" or "messages": turns {"from", "value"} or messages {"role", "content"};
///  - "prompt", a text or messages (TRL), unless it is a text and both answers are whole conversations (UltraFeedback);
///  - what "chosen" and "rejected" begin with, if they are two lists or two texts (TRL, HH-RLHF). In texts it ends
///    after the last "Assistant:" of the common beginning, or else after its last word.
/// Throws FormatError naming the key and the fault.
PreferencePair read_preference(const Json& record, const ChatKeys& keys = {});

/// One answer to a prompt.
struct JudgedAnswer {
  Conversation conversation;  ///< of which the answer counts
  bool desirable = false;
};

/// Reads one record with a truth value `keys.label`, or "kto_tag" as in LLaMA-Factory's examples. The prompt and its answer are one of
/// these, the first that the record has:
///  - "instruction", "input" and "output", as Alpaca has them;
///  - "messages" or "conversations": the last message is the answer;
///  - "prompt" and "completion", texts or messages (TRL).
/// Throws FormatError naming the key and the fault.
JudgedAnswer read_judged_answer(const Json& record, const ChatKeys& keys = {});

}  // namespace stepforge
