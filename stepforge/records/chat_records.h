// SPDX-License-Identifier: Apache-2.0
// Records of chat and instruction data: rendered by a chat template, with a loss mask.
#pragma once

#include <memory>
#include <string>

#include "stepforge/records/conversation.h"
#include "stepforge/records/record_format.h"
#include "stepforge/text/chat_template.h"

namespace stepforge {

struct ChatRecordOptions {
  ChatLayout layout = ChatLayout::messages;
  LossOn loss_on = LossOn::assistant;
  ChatKeys keys{};
  TextFilterRules filter{};  ///< applied to the rendered text
};

/// Each record is one JSON object that holds a conversation, and becomes one document: the text of the template,
/// encoded as a whole. The tokens of the assistant's messages count, including the token that ends each: those
/// of the template's {% generation %} blocks, as Hugging Face's return_assistant_tokens_mask has it, or, without
/// such blocks, what the template adds for the message. A pair of a prompt and a completion is encoded one after the
/// other, without a template, and ends with the end-of-text token. A record of two answers (ChatLayout::preference) is one
/// document too: the better answer with its prompt, then the other one with the same prompt; the answers count. So is an answer
/// that is judged (ChatLayout::unpaired_preference); its first token, which nothing predicts, counts if it is undesirable.
class ChatRecords : public RecordFormat {
 public:
  /// Must not outlive `tokenizer` and `chat_template`. The template may be null for layouts that need none.
  ChatRecords(const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
              const ChatRecordOptions& options);

  std::unique_ptr<RecordEncoder> encoder() const override;
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  bool has_loss_mask() const override {
    return options_.loss_on != LossOn::all || options_.layout >= ChatLayout::preference;
  }
  std::string fingerprint() const override;
  Json description() const override;

 private:
  const Tokenizer& tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  ChatRecordOptions options_;
  TextFilter filter_;
};

}  // namespace stepforge
