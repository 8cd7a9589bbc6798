// SPDX-License-Identifier: Apache-2.0
// Which tokens of a rendered conversation a model is to learn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/records/conversation.h"
#include "stepforge/text/chat_template.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;

  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

struct RenderedConversation {
  std::string text;
  std::vector<TextSpan> counted;  ///< ascending
  /// Whether a special token right after a span ends the message, and so counts too. Not so for spans of
  /// {% generation %} blocks, which say themselves what counts.
  bool with_end_token = false;
};

/// Renders a conversation and finds the text of the messages that count. Throws FormatError if the template renders
/// a message in a way that cannot be told apart from the others. Looks for no spans if no message counts.
RenderedConversation render_for_loss(const ChatTemplate& chat_template, const Conversation& conversation);

/// Encodes the text as a whole; `counted` gets 1 for each token of which a byte lies in a span, else 0, as
/// Hugging Face's return_assistant_tokens_mask counts. Both are appended to.
void encode_with_mask(const RenderedConversation& rendered, const Tokenizer& tokenizer, Encoder& encoder,
                      std::vector<int32_t>& tokens, std::vector<uint8_t>& counted);

}  // namespace stepforge
