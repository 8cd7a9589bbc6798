// SPDX-License-Identifier: Apache-2.0
// Chat templates by name, for models that come without one: data.chat_template = "chatml".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/chat_template.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

struct BuiltinTemplate {
  std::string_view name;
  std::string_view source;  ///< Jinja; without tools, whose descriptions each model words differently
  std::vector<std::string_view> tokens;  ///< must be single tokens, or the model learns their letters
};

/// chatml, llama3, gemma, mistral, qwen, deepseek and alpaca, as the models of these names were trained.
const std::vector<BuiltinTemplate>& builtin_templates();
/// Null if there is none of that name.
const BuiltinTemplate* find_builtin_template(std::string_view name);

/// Throws UsageError with the remedy if the tokenizer lacks a token of the built-in template `name`, or if the template ends answers
/// with the end of text and `loaded` does not know it. Does nothing for the path of a file.
void require_template_tokens(std::string_view name, const ChatTemplate& loaded, const Tokenizer& tokenizer);

}  // namespace stepforge
