// SPDX-License-Identifier: Apache-2.0
// Renders templates for jinja_oracle.py. Reads lines {"template": ..., "variables": {...}, "now": seconds}, or for the template of a
// model folder {"folder": ..., "messages": [...], "tools": ..., "documents": ..., "add_generation_prompt": ...,
// "continue_final_message": ..., "variables": {...}, "now": seconds}. Writes for each
// {"text": ..., "spans": [[begin, end], ...]} or {"error": ..., "reason": ...}.
#include <iostream>
#include <string>

#include "stepforge/base/json.h"
#include "stepforge/jinja/template.h"
#include "stepforge/text/chat_template.h"

namespace {

using stepforge::Json;
using stepforge::jinja::TemplateError;

std::string reason_name(TemplateError::Reason reason) {
  switch (reason) {
    case TemplateError::Reason::syntax:
      return "syntax";
    case TemplateError::Reason::evaluation:
      return "evaluation";
    case TemplateError::Reason::limit:
      return "limit";
    case TemplateError::Reason::unsupported:
      return "unsupported";
    case TemplateError::Reason::refusal:
      return "refusal";
  }
  return "";
}

stepforge::jinja::Rendered rendered(const Json& question) {
  stepforge::ChatTemplateOptions options;
  options.limits.now = question.at("now").get<int64_t>();
  if (question.contains("template")) {
    const auto parsed =
        stepforge::jinja::Template::parse(question["template"].get<std::string>(), "template");
    return parsed.render(question.at("variables"), options.limits);
  }
  options.tools = question.at("tools");
  options.documents = question.at("documents");
  options.add_generation_prompt = question.at("add_generation_prompt").get<bool>();
  options.continue_final_message = question.at("continue_final_message").get<bool>();
  options.variables = question.at("variables");
  const auto chat = stepforge::ChatTemplate::load(question.at("folder").get<std::string>());
  return chat.render(question.at("messages"), options);
}

Json answer(const Json& question) {
  try {
    const stepforge::jinja::Rendered result = rendered(question);
    Json spans = Json::array();
    for (const auto& span : result.generation) spans.push_back({span.begin, span.end});
    return {{"text", result.text}, {"spans", spans}};
  } catch (const TemplateError& error) {
    return {{"error", error.what()}, {"reason", reason_name(error.reason())}};
  } catch (const stepforge::Error& error) {
    return {{"error", error.what()}, {"reason", "use"}};
  }
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(stepforge::parse_json(line, "standard input")).dump() << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
