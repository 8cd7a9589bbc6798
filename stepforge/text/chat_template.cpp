// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/builtin_templates.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{4} << 20;
constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr std::array kTokenNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
constexpr std::array kReasoningNames = {"reasoning_content", "thinking", "reasoning"};
/// Marks the end of the message to continue, as in transformers: a template that trims removes the space.
constexpr std::string_view kEndMark = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A template that is not parsed yet.
struct Source {
  std::string text;
  std::string where;
};
using Sources = std::map<std::string, Source>;

Sources files_of(const fs::path& folder) {
  Sources sources;
  if (const fs::path path = folder / kChatTemplateFile; fs::exists(path))
    sources["default"] = {read_chat_template(path), path.string()};
  const fs::path others = folder / "additional_chat_templates";
  if (!fs::is_directory(others)) return sources;
  for (const fs::path& path : entries_of(others)) {
    if (path.extension() == ".jinja")
      sources[path.stem().string()] = {read_chat_template(path), path.string()};
  }
  return sources;
}

Sources members_of(const JsonReader& config) {
  Sources sources;
  const auto add = [&](const std::string& name, const JsonReader& text) {
    sources[name] = {text.text(), config.source() + ", chat_template " + name};
  };
  if (!config.has("chat_template")) return sources;
  const JsonReader member = config["chat_template"];
  if (member.json().is_string()) {
    add("default", member);
    return sources;
  }
  for (size_t i = 0; i < member.size(); ++i)
    add(member.at(i).object()["name"].text(), member.at(i)["template"]);
  return sources;
}

/// Null if the file does not exist.
Json read_config(const fs::path& path) {
  if (!fs::exists(path)) return nullptr;
  Json document = read_json_file(path, {.max_bytes = kMaxConfigBytes});
  const JsonReader reader(document, path.string());
  reader.object();
  return document;
}

Sources sources_in(const fs::path& folder) {
  Sources sources = files_of(folder);
  const fs::path path = folder / kTokenizerConfig;
  if (const Json config = read_config(path); sources.empty() && !config.is_null())
    sources = members_of(JsonReader(config, path.string()));
  return sources;
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
        format("continue_final_message: the text of the last message, {}, is not in the output of {}; "
               "use another template",
               quoted_for_message(content), source));
  }
  const bool kept_space = std::string_view(text).substr(mark).starts_with(kEndMark);
  text.resize(mark);
  if (!kept_space) text.resize(text.find_last_not_of(" \t\n\r\f\v") + 1);
}

}  // namespace

std::string read_chat_template(const fs::path& file) {
  if (!fs::exists(file)) {
    if (const BuiltinTemplate* known = find_builtin_template(file.native()))
      return std::string(known->source);
    std::vector<std::string> names;
    for (const BuiltinTemplate& known : builtin_templates()) names.emplace_back(known.name);
    throw UsageError(
        format("there is no chat template at {}; built in are {}", file.string(), join(names, ", ")));
  }
  return read_file(file, kMaxTemplateBytes);
}

bool ChatTemplate::exists(const fs::path& folder) {
  return !sources_in(folder).empty();
}

ChatTemplate ChatTemplate::from_source(const std::string& source, const std::string& name) {
  ChatTemplate result;
  result.source_ = name;
  result.texts_["default"] = source;
  result.templates_.emplace("default", jinja::Template::parse(source, name));
  return result;
}

ChatTemplate ChatTemplate::load(const fs::path& folder, const fs::path& file) {
  ChatTemplate result;
  if (file.empty()) {
    result.source_ = folder.string();
    for (auto& [name, source] : sources_in(folder)) {
      result.templates_.emplace(name, jinja::Template::parse(source.text, source.where));
      result.texts_[name] = std::move(source.text);
    }
  } else {
    result = from_source(read_chat_template(file), file.string());
  }
  if (result.templates_.empty()) {
    throw UsageError(
        format("the folder {} has no chat template, neither a {} nor \"chat_template\" in its {}; add one",
               folder.string(), kChatTemplateFile, kTokenizerConfig));
  }
  for (const char* name : {kTokenizerConfig, "special_tokens_map.json"}) {
    const Json document = read_config(folder / name);
    if (document.is_null()) continue;
    const JsonReader config(document, (folder / name).string());
    // Newer folders list all added tokens in tokenizer_config.json, which then holds all special tokens too.
    read_tokens(result.special_tokens_, config);
    if (config.has("added_tokens_decoder")) break;
  }
  return result;
}

std::string ChatTemplate::fingerprint() const {
  Json parts = Json::array();
  for (const auto& named : {texts_, special_tokens_})
    for (const auto& [name, text] : named) parts.push_back({name, text});
  return content_hash(parts.dump());
}

const jinja::Template& ChatTemplate::choose(const ChatTemplateOptions& options) const {
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

jinja::Rendered ChatTemplate::render(const Json& messages, const ChatTemplateOptions& options) const {
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
