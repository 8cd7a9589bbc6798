// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/template.h"

#include <algorithm>
#include <map>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/parser.h"
#include "stepforge/jinja/scoped_state.h"
#include "stepforge/jinja/scopes.h"

namespace stepforge::jinja {
namespace {

constexpr size_t kMaxSource = size_t{4} << 20;

std::string_view reason_prefix(TemplateError::Reason reason) {
  switch (reason) {
    case TemplateError::Reason::unsupported:
      return "not supported: ";
    case TemplateError::Reason::limit:
      return "over a limit: ";
    default:
      return "";
  }
}

std::string error_text(const std::string& name, int line, TemplateError::Reason reason,
                       const std::string& message, const std::string& remedy) {
  return format("{}, line {}: {}{}; {}", name, line, reason_prefix(reason), message, remedy);
}

/// Converts spans of code points to spans of bytes, in one pass over the text.
std::vector<Span> byte_spans(const std::vector<Span>& spans, const std::string& text) {
  std::vector<int64_t> wanted;
  for (const Span& span : spans) {
    wanted.push_back(span.begin);
    wanted.push_back(span.end);
  }
  std::sort(wanted.begin(), wanted.end());
  std::map<int64_t, int64_t> offsets;
  size_t at = 0;
  int64_t index = 0;
  for (const int64_t target : wanted) {
    for (; at < text.size() && index < target; ++index)
      at += utf8_sequence_length(std::string_view(text).substr(at));
    offsets[target] = static_cast<int64_t>(at);
  }
  std::vector<Span> result;
  for (const Span& span : spans) result.push_back({offsets[span.begin], offsets[span.end]});
  return result;
}

}  // namespace

Template Template::parse(const std::string& source, std::string name) {
  require_utf8(source, name);
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  try {
    if (source.size() > kMaxSource) {
      throw SourceFault{TemplateError::Reason::limit, 1,
                        format("the template has more than {}", human_bytes(kMaxSource)), "shorten it"};
    }
    program->body = Parser(tokenize(source)).parse();
    bind_names(*program);
  } catch (const SourceFault& fault) {
    throw TemplateError(fault.reason, fault.line,
                        error_text(program->name, fault.line, fault.reason, fault.message, fault.remedy));
  }
  return Template(std::move(program));
}

Rendered Template::render(const Json& variables, const RenderOptions& options) const {
  if (!variables.is_object())
    throw Error(format("the variables of the template {} are no JSON object; pass one", program_->name));
  int line = 1;
  try {
    Interpreter interpreter(*program_, options);
    try {
      return interpreter.run(variables);
    } catch (const Fault&) {
      line = interpreter.line();
      throw;
    }
  } catch (const Fault& fault) {
    if (fault.reason == TemplateError::Reason::refusal) {
      throw TemplateRefusal(
          fault.message, line,
          format("{}, line {}: the template refuses the messages: {}; change them, or use another template",
                 program_->name, line, fault.message));
    }
    throw TemplateError(fault.reason, line,
                        error_text(program_->name, line, fault.reason, fault.message, fault.remedy));
  }
}

Interpreter::Interpreter(const Program& program, const RenderOptions& options)
    : program_(program), options_(options), heap_(options) {}

Rendered Interpreter::run(const Json& variables) {
  for (const auto& [name, value] : variables.items())
    variables_.insert_or_assign(name, heap_.from_json(value));
  heap_.budget().begin_render();
  const Entered entered(*this, program_.function, nullptr);
  enter(program_.scope);
  execute(program_.body);
  Rendered result;
  result.generation = byte_spans(generation_, root_);
  result.text = std::move(root_);
  return result;
}

}  // namespace stepforge::jinja
