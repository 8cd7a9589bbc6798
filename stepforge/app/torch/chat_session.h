// SPDX-License-Identifier: Apache-2.0
// A conversation with a model, rendered by its chat template.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/app/torch/loaded_model.h"
#include "stepforge/plan/sampling_params.h"
#include "stepforge/text/chat_template.h"
#include "stepforge/train/generation.h"

namespace stepforge {

struct ChatSessionOptions {
  std::string system;      ///< the system message; empty: none
  int64_t context = 4096;  ///< tokens of conversation and answer; at most the model's
  SamplingParams sampling{};
};

class ChatSession {
 public:
  /// Model and template must outlive the session. Throws UsageError if the model has no tokenizer.
  ChatSession(const LoadedModel& model, const ChatTemplate& chat_template, DType compute,
              ChatSessionOptions options);

  /// Adds the user's message and the model's answer. `print` gets the answer piece by piece; when `stopped` returns true,
  /// asked after every token, the answer ends there. Throws UsageError, with the conversation unchanged, if it no
  /// longer fits the context.
  std::string answer(const std::string& message, const std::function<void(std::string_view)>& print,
                     const std::function<bool()>& stopped);

  /// Forgets all messages but the system's.
  void reset();
  /// Sets the system message, or removes it if `text` is empty, and begins a new conversation.
  void set_system(const std::string& text);

  const Json& messages() const { return messages_; }

 private:
  std::vector<int32_t> prompt() const;

  std::unique_ptr<const Tokenizer> tokenizer_;
  const ChatTemplate& template_;
  ChatSessionOptions options_;
  Model forward_;
  Generator generator_;
  std::vector<int32_t> ends_;
  Json messages_ = Json::array();
};

}  // namespace stepforge
