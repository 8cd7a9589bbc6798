// SPDX-License-Identifier: Apache-2.0
// Renders templates for jinja_oracle.py. Reads lines {"template": ..., "variables": {...}, "now": seconds} and writes for each
// {"text": ..., "spans": [[begin, end], ...]} or {"error": ..., "reason": ...}.
#include <iostream>
#include <string>

#include "stepforge/base/json.h"
#include "stepforge/jinja/template.h"

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

Json answer(const Json& question) {
  stepforge::jinja::RenderOptions options;
  options.now = question.at("now").get<int64_t>();
  try {
    const auto parsed =
        stepforge::jinja::Template::parse(question.at("template").get<std::string>(), "template");
    const auto rendered = parsed.render(question.at("variables"), options);
    Json spans = Json::array();
    for (const auto& span : rendered.generation) spans.push_back({span.begin, span.end});
    return {{"text", rendered.text}, {"spans", spans}};
  } catch (const TemplateError& error) {
    return {{"error", error.what()}, {"reason", reason_name(error.reason())}};
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
