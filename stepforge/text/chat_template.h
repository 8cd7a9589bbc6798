// SPDX-License-Identifier: Apache-2.0
// The chat template of a model folder: messages to text, as transformers' apply_chat_template does.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "stepforge/base/json.h"
#include "stepforge/jinja/template.h"

namespace stepforge {

struct ChatTemplateOptions {
  Json tools{};      ///< a list of function schemas, or null
  Json documents{};  ///< a list of objects, or null
  bool add_generation_prompt = false;
  /// Ends the text with the content of the last message, so that a model continues it.
  bool continue_final_message = false;
  Json variables = Json::object();  ///< further variables; they replace special tokens of the same name
  std::string template_name{};      ///< which template; empty: "tool_use" if there are tools, else "default"
  jinja::RenderOptions limits{};
};

/// Immutable; several threads may render with it.
/// The name of the template's file in a folder.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";

/// The text of a template: of a file, or, if there is none, of a built-in template of that name (builtin_templates.h). Throws
/// UsageError if there is neither, Error if it cannot be read or is too large.
std::string read_chat_template(const std::filesystem::path& file);

class ChatTemplate {
 public:
  /// Reads chat_template.jinja and additional_chat_templates/*.jinja, or else chat_template of tokenizer_config.json (a
  /// string, or a list of {"name", "template"}); the special tokens come from tokenizer_config.json and
  /// special_tokens_map.json. Throws UsageError if the folder has no template, FormatError or jinja::TemplateError if a
  /// file is malformed.
  /// `file`, if given, is read instead of the folder's templates.
  static ChatTemplate load(const std::filesystem::path& folder, const std::filesystem::path& file = {});
  /// Whether load() would find a template in the folder.
  static bool exists(const std::filesystem::path& folder);
  /// A template without special tokens. Throws jinja::TemplateError; `name` stands in errors.
  static ChatTemplate from_source(const std::string& source, const std::string& name);

  /// `messages` is a list of objects. As transformers does, drops members that are null and passes reasoning_content,
  /// thinking and reasoning under all names that templates read. Throws Error if the messages cannot be rendered with
  /// these options, jinja::TemplateRefusal if the template refuses them.
  jinja::Rendered render(const Json& messages, const ChatTemplateOptions& options = {}) const;

  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }
  /// Hash of the sources of all templates and of the special tokens.
  std::string fingerprint() const;

 private:
  const jinja::Template& choose(const ChatTemplateOptions& options) const;

  std::string source_;                        // the folder or file, for errors
  std::map<std::string, std::string> texts_;  // by name
  std::map<std::string, jinja::Template> templates_;
  std::map<std::string, std::string> special_tokens_;  // bos_token, eos_token, ...
};

}  // namespace stepforge
