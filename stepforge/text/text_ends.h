// SPDX-License-Identifier: Apache-2.0
// Where a text of a model begins and ends: the same in training data, samples, `generate` and `chat`.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/text/chat_template.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// The ids that end a text, each once: eos_token_id of `generation` (a generation_config.json, or null), a number or a list,
/// and the tokenizer's end of text.
std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const Json& generation);

/// The ids of the tokens with which the template ends an answer and a call of a tool, each once: the added token that follows
/// the text of the assistant's last message. Empty if it ends answers with plain text or refuses a short conversation.
std::vector<int32_t> answer_ends(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

/// The ids of a plain text that a model is to continue. They begin as a document of its training data does: with the tokens
/// that the post-processor puts before a text, unless `bos` (data.bos) is false. An empty text without such tokens becomes
/// the end-of-text token, after which documents begin in training.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text, bool bos);

}  // namespace stepforge
