// SPDX-License-Identifier: Apache-2.0
// Filters that return text.
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {
namespace text_filter {

template <std::string (*change)(std::string_view), bool stays_safe = true>
Value changed(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("the filter", arguments, {}, 0);
  const std::string text = str(interpreter.heap(), subject);
  interpreter.heap().budget().step(static_cast<int64_t>(text.size() / 8));
  return interpreter.heap().text(change(text), stays_safe && is_safe(subject));
}

/// Words begin after white space, hyphens and opening brackets.
std::string title_words(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const auto separates = [&](size_t place) {
      return space_length(text.substr(place)) != 0 ||
             std::string_view("-({[<").find(text[place]) != std::string_view::npos;
    };
    size_t end = at;
    if (separates(at)) {
      while (end < text.size() && separates(end)) end += utf8_sequence_length(text.substr(end));
      result += text.substr(at, end - at);
    } else {
      while (end < text.size() && !separates(end)) end += utf8_sequence_length(text.substr(end));
      const size_t first = utf8_sequence_length(text.substr(at));
      result += upper(text.substr(at, first));
      result += lower(text.substr(at + first, end - at - first));
    }
    at = end;
  }
  return result;
}

Value string(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("string", arguments, {}, 0);
  return subject.is(Kind::string) ? subject : interpreter.heap().text(str(interpreter.heap(), subject));
}

Value safe(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("safe", arguments, {}, 0);
  return interpreter.heap().text(str(interpreter.heap(), subject), true);
}

Value escape(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("escape", arguments, {}, 0);
  if (is_safe(subject)) return subject;
  Heap& heap = interpreter.heap();
  return heap.text(html_escaped(str(heap, subject)), true);
}

Value trim(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("trim", arguments, {"chars"}, 0);
  const std::string text = str(interpreter.heap(), subject);
  interpreter.heap().budget().read_bytes(text.size());
  return interpreter.heap().text(std::string(stripped(text, values[0], true, true)), is_safe(subject));
}

Value replace(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("replace", arguments, {"old", "new", "count"}, 2);
  Heap& heap = interpreter.heap();
  const bool limited = values[2] != nullptr && !values[2]->is(Kind::none);
  const int64_t count = limited ? integer_argument("replace", *values[2]) : -1;
  return heap.text(replaced(heap, str(heap, subject), str(heap, *values[0]), str(heap, *values[1]), count));
}

Value indent(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("indent", arguments, {"width", "first", "blank"}, 0);
  Heap& heap = interpreter.heap();
  std::string indentation(4, ' ');
  if (values[0] != nullptr) {
    indentation = values[0]->is(Kind::string) ? values[0]->text()
                                              : repeated(heap, " ", integer_argument("indent", *values[0]));
  }
  const std::string text = text_argument("indent", subject) + "\n";
  heap.budget().read_bytes(text.size());
  const bool blank = flag(values[2]);
  std::string result;
  bool is_first = true;
  for (const std::string_view line : lines_of(heap, text, false)) {
    heap.budget().step();
    heap.budget().allocate(indentation.size());
    if (!is_first) result += '\n';
    if (is_first ? flag(values[1]) : blank || !line.empty()) result += indentation;
    result += line;
    is_first = false;
  }
  return heap.text(std::move(result), is_safe(subject));
}

Value format_filter(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  Heap& heap = interpreter.heap();
  if (!arguments.named.empty()) fail_unsupported("the filter format with names", "pass the values in order");
  if (is_safe(subject)) fail_unsupported("the filter format of a safe string", "apply `safe` last");
  return heap.text(percent_format(heap, str(heap, subject), arguments.positional));
}

Value join(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("join", arguments, {"d", "attribute"}, 0);
  Heap& heap = interpreter.heap();
  const AttributePath path(heap, values[1]);
  const std::string separator = values[0] == nullptr ? "" : str(heap, *values[0]);
  const Next next = iterate(heap, subject);
  std::string result;
  bool first = true;
  for (Value item; next(item);) {
    heap.budget().step();
    const std::string text = str(heap, path.look_up(heap, item));
    heap.budget().allocate(text.size() + separator.size());
    if (!std::exchange(first, false)) result += separator;
    result += text;
  }
  return heap.text(std::move(result));
}

Value tojson(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  Heap& heap = interpreter.heap();
  JsonStyle style;
  style.ensure_ascii = flag(values[0]);
  style.sort_keys = flag(values[3]);
  if (values[1] != nullptr && !values[1]->is(Kind::none)) {
    style.indented = true;
    style.item_separator = ",";
    style.indent = values[1]->is(Kind::string) ? values[1]->text()
                                               : repeated(heap, " ", integer_argument("tojson", *values[1]));
    if (style.indent.size() > 1000)
      fail_limit("tojson with an indent of more than 1,000 characters", "indent less");
  }
  if (values[2] != nullptr && !values[2]->is(Kind::none)) {
    const std::vector<Value> separators = all_of(heap, *values[2]);
    if (separators.size() != 2)
      fail("tojson: separators needs two strings", "pass (item separator, key separator)");
    style.item_separator = text_argument("tojson", separators[0]);
    style.key_separator = text_argument("tojson", separators[1]);
  }
  return heap.text(json_text(heap, subject, style));
}

constexpr NamedFunction kFilters[] = {
    {"capitalize", changed<capitalized>},
    {"e", escape},
    {"escape", escape},
    {"format", format_filter},
    {"indent", indent},
    {"join", join},
    {"lower", changed<lower>},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", changed<title_words, false>},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", changed<upper>},
};

}  // namespace text_filter
}  // namespace

std::span<const NamedFunction> text_filters() {
  return text_filter::kFilters;
}

}  // namespace stepforge::jinja
