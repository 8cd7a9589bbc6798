// SPDX-License-Identifier: Apache-2.0
// Texts and spans recorded from transformers (tests/golden/jinja/make.py).
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/template.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

using jinja::Template;

std::string outcome(const Template& parsed, const Json& variables, int64_t now) {
  jinja::RenderOptions options;
  options.now = now;
  try {
    const jinja::Rendered result = parsed.render(variables, options);
    std::string text = result.text;
    for (const jinja::Span& span : result.generation) {
      text += "\n[" + std::to_string(span.begin) + "," + std::to_string(span.end) + "]";
    }
    return text;
  } catch (const jinja::TemplateRefusal& refusal) {
    return "refusal: " + refusal.message();
  } catch (const jinja::TemplateError& error) {
    return error.reason() == jinja::TemplateError::Reason::evaluation ? "error" : error.what();
  }
}

std::string recorded_outcome(const Json& test) {
  if (test.contains("error")) {
    return test["refusal"].get<bool>() ? "refusal: " + test["error"].get<std::string>() : "error";
  }
  std::string text = test["text"].get<std::string>();
  for (const Json& span : test["spans"]) {
    text +=
        "\n[" + std::to_string(span[0].get<int64_t>()) + "," + std::to_string(span[1].get<int64_t>()) + "]";
  }
  return text;
}

TEST(JinjaGolden, EveryTemplateGivesTheTextAndSpansOfTransformers) {
  const auto folder = source_dir() / "tests/golden/jinja";
  const Json conversations = read_json_file(folder / "conversations.json");
  const Json recorded = read_json_file(folder / "recorded.json");
  std::map<std::string, Template> templates;
  ASSERT_GE(recorded["cases"].size(), 500U);
  for (const Json& test : recorded["cases"]) {
    const std::string name = test["template"].get<std::string>();
    if (!templates.contains(name)) {
      templates.emplace(name, Template::parse(read_file(folder / "templates" / (name + ".jinja")), name));
    }
    const std::string conversation = test["conversation"].get<std::string>();
    EXPECT_EQ(outcome(templates.at(name), conversations[conversation], recorded["now"].get<int64_t>()),
              recorded_outcome(test))
        << name << " with " << conversation;
  }
  EXPECT_GE(templates.size(), 40U);
}

TEST(JinjaGolden, SafeStringsBesideTextAreThoseOfJinja2) {
  const Json recorded = read_json_file(source_dir() / "tests/golden/jinja/markup.json");
  ASSERT_GE(recorded.size(), 40U);
  for (const Json& test : recorded) {
    const auto expression = test[0].get<std::string>();
    EXPECT_EQ(outcome(Template::parse("{{ " + expression + " }}", "markup"), Json::object(), 0),
              test[1].get<std::string>())
        << expression;
  }
}

TEST(JinjaGolden, EveryFilterAndTestThatPublishedTemplatesUseIsThere) {
  std::istringstream uses(read_file(source_dir() / "tests/golden/jinja/uses.tsv"));
  int rows = 0;
  for (std::string line; std::getline(uses, line);) {
    std::istringstream row(line);
    std::string kind;
    std::string name;
    if (!std::getline(row, kind, '\t') || !std::getline(row, name, '\t')) continue;
    if (kind != "filter" && kind != "test") continue;
    EXPECT_NE(kind == "filter" ? jinja::find_filter(name) : jinja::find_test(name), nullptr) << name;
    ++rows;
  }
  EXPECT_GE(rows, 40);
}

}  // namespace
}  // namespace stepforge::testing
