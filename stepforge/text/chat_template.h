// SPDX-License-Identifier: Apache-2.0
// The chat template of a model folder: messages to text, as transformers' apply_chat_template does.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "stepforge/base/json.h"
#include "stepforge/jinja/template.h"

namespace stepforge {

struct ChatOptions {
  Json tools;      ///< a list of function schemas, or null
  Json documents;  ///< a list of objects, or null
  bool add_generation_prompt = false;
  /// Ends the text with the content of the last message, so that a model continues it.
  bool continue_final_message = false;
  Json variables = Json::object();  ///< further variables; they replace special tokens of the same name
  std::string template_name;        ///< of several; empty: "tool_use" if there are tools, otherwise "default"
  jinja::RenderOptions limits;
};

/// Immutable; several threads may render with it.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja and additional_chat_templates/*.jinja, or else chat_template of tokenizer_config.json (a
  /// string, or a list of {"name", "template"}); the special tokens come from tokenizer_config.json and
  /// special_tokens_map.json. Throws UsageError if the folder has no template, FormatError or jinja::TemplateError if a
  /// file is malformed.
  static ChatTemplate load(const std::filesystem::path& folder);

  /// `messages` is a list of objects. As transformers does, drops members that are null and passes reasoning_content,
  /// thinking and reasoning under all names that templates read. Throws Error if the messages cannot be rendered with
  /// these options, jinja::TemplateRefusal if the template refuses them.
  jinja::Rendered render(const Json& messages, const ChatOptions& options = {}) const;

  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  const jinja::Template& choose(const ChatOptions& options) const;

  std::string source_;
  std::map<std::string, jinja::Template> templates_;
  std::map<std::string, std::string> special_tokens_;  // bos_token, eos_token, ...
};

}  // namespace stepforge
