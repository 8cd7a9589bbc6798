// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/chat_template.h"

#include <algorithm>
#include <array>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{4} << 20;
constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr std::array kTokenNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
constexpr std::array kReasoningNames = {"reasoning_content", "thinking", "reasoning"};
/// Marks the end of the message to continue, as in transformers: a template that trims removes the space.
constexpr std::string_view kEndMark = "CONTINUE_FINAL_MESSAGE_TAG ";

using Templates = std::map<std::string, jinja::Template>;

void add_file(Templates& templates, const std::string& name, const fs::path& path) {
  templates.insert_or_assign(name, jinja::Template::parse(read_file(path, kMaxTemplateBytes), path.string()));
}

void read_files(Templates& templates, const fs::path& folder) {
  if (fs::exists(folder / "chat_template.jinja"))
    add_file(templates, "default", folder / "chat_template.jinja");
  const fs::path others = folder / "additional_chat_templates";
  if (!fs::is_directory(others)) return;
  for (const fs::path& path : entries_of(others)) {
    if (path.extension() == ".jinja") add_file(templates, path.stem().string(), path);
  }
}

void read_member(Templates& templates, const JsonReader& config) {
  const auto parse = [&](const std::string& name, const JsonReader& text) {
    templates.insert_or_assign(
        name, jinja::Template::parse(text.text(), config.source() + ", chat_template " + name));
  };
  if (!config.has("chat_template")) return;
  const JsonReader member = config["chat_template"];
  if (member.json().is_string()) return parse("default", member);
  for (size_t i = 0; i < member.size(); ++i)
    parse(member.at(i).object()["name"].text(), member.at(i)["template"]);
}

void read_tokens(std::map<std::string, std::string>& tokens, const JsonReader& config) {
  for (const char* name : kTokenNames) {
    if (!config.has(name)) continue;
    const JsonReader token = config[name];
    tokens[name] = token.json().is_object() ? token["content"].text() : token.text();
  }
}

Json without_null_members(const Json& message) {
  Json result = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) append_member(result, key, value);
  }
  return result;
}

/// Passes the reasoning under the names that templates read.
void alias_reasoning(Json& message) {
  for (const char* name : kReasoningNames) {
    if (!message.contains(name)) continue;
    const Json reasoning = message[name];
    Json result = Json::object();
    if (!message.contains("thinking")) result["thinking"] = reasoning;
    for (const auto& [key, value] : message.items()) append_member(result, key, value);
    result["reasoning_content"] = reasoning;
    message = std::move(result);
    return;
  }
}

/// Appends the mark to the last text of `message` and returns that text.
std::string mark_end(Json& message) {
  Json* text = message.contains("content") ? &message["content"] : nullptr;
  if (text != nullptr && text->is_array()) {
    Json* last = nullptr;
    for (Json& part : *text) {
      if (part.is_object() && part.contains("text")) last = &part["text"];
    }
    text = last;
  }
  if (text == nullptr || !text->is_string()) {
    throw Error(
        "continue_final_message: the last message has no text in content; add one, or pass "
        "add_generation_prompt");
  }
  std::string before = text->get<std::string>();
  *text = before + std::string(kEndMark);
  return before;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

void cut_at_end_mark(std::string& text, std::string_view content, const std::string& source) {
  const size_t mark = text.rfind(trimmed(kEndMark));
  if (mark == std::string::npos || text.find(trimmed(content)) == std::string::npos) {
    throw Error(
        format("continue_final_message: the text of the last message, {}, is not in what {} makes of it; use "
               "another template",
               quoted_for_message(content), source));
  }
  const bool kept_space = std::string_view(text).substr(mark).starts_with(kEndMark);
  text.resize(mark);
  if (!kept_space) text.resize(text.find_last_not_of(" \t\n\r\f\v") + 1);
}

}  // namespace

ChatTemplate ChatTemplate::load(const fs::path& folder) {
  ChatTemplate result;
  result.source_ = folder.string();
  read_files(result.templates_, folder);
  const bool from_files = !result.templates_.empty();
  const JsonLimits limits{.max_bytes = kMaxConfigBytes};
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (!fs::exists(folder / name)) continue;
    const Json document = read_json_file(folder / name, limits);
    const JsonReader config(document, (folder / name).string());
    config.object();
    if (!from_files && name == std::string_view("tokenizer_config.json"))
      read_member(result.templates_, config);
    // Newer folders list all added tokens in tokenizer_config.json, which then holds all special tokens too.
    read_tokens(result.special_tokens_, config);
    if (config.has("added_tokens_decoder")) break;
  }
  if (result.templates_.empty()) {
    throw UsageError(
        format("the folder {} has no chat template; add a file chat_template.jinja", folder.string()));
  }
  return result;
}

const jinja::Template& ChatTemplate::choose(const ChatOptions& options) const {
  std::string name = options.template_name;
  if (name.empty())
    name = !options.tools.is_null() && templates_.contains("tool_use") ? "tool_use" : "default";
  const auto found = templates_.find(name);
  if (found != templates_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, parsed] : templates_) names.push_back(known);
  throw UsageError(format("the folder {} has no chat template {}; choose one of {}", source_,
                          quoted_for_message(name), join(names, ", ")));
}

jinja::Rendered ChatTemplate::render(const Json& messages, const ChatOptions& options) const {
  if (!messages.is_array() || messages.empty())
    throw Error("a conversation needs a list of one or more messages; pass one");
  if (options.continue_final_message && options.add_generation_prompt) {
    throw UsageError("continue_final_message and add_generation_prompt exclude each other; choose one");
  }
  Json chat = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object())
      throw Error(format("the message {} is not an object; pass role and content", json_excerpt(message)));
    chat.push_back(without_null_members(message));
    alias_reasoning(chat.back());
  }
  const std::string content = options.continue_final_message ? mark_end(chat.back()) : "";
  Json variables = Json::object();
  variables["messages"] = std::move(chat);
  variables["tools"] = options.tools;
  variables["documents"] = options.documents;
  variables["add_generation_prompt"] = options.add_generation_prompt;
  for (const auto& [name, token] : special_tokens_) variables[name] = token;
  for (const auto& [name, value] : options.variables.items()) variables[name] = value;
  jinja::Rendered result = choose(options).render(variables, options.limits);
  if (options.continue_final_message) {
    cut_at_end_mark(result.text, content, source_);
    const auto size = static_cast<int64_t>(result.text.size());
    for (jinja::Span& span : result.generation) span = {std::min(span.begin, size), std::min(span.end, size)};
  }
  return result;
}

}  // namespace stepforge
