// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/filters.h"

#include <algorithm>
#include <charconv>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/attributes.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {

// Jinja2 has these; no published template uses them.
constexpr std::string_view kRefusedFilters[] = {
    "abs",       "attr",   "batch",     "center",   "filesizeformat", "forceescape", "groupby",
    "pprint",    "random", "round",     "slice",    "striptags",      "sum",         "truncate",
    "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"};
constexpr std::string_view kRefusedTests[] = {"callable", "divisibleby", "even", "filter", "lower",
                                              "odd",      "sameas",      "test", "upper"};

ValueFunction find_among(std::span<const NamedFunction> functions, std::string_view name) {
  const auto found = std::find_if(functions.begin(), functions.end(),
                                  [name](const NamedFunction& entry) { return entry.first == name; });
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace

ValueFunction find_filter(std::string_view name) {
  for (const std::span<const NamedFunction> filters :
       {text_filters(), value_filters(), sequence_filters(), choice_filters()}) {
    if (const ValueFunction found = find_among(filters, name)) return found;
  }
  return nullptr;
}

ValueFunction find_test(std::string_view name) {
  return find_among(value_tests(), name);
}

bool is_refused_filter(std::string_view name) {
  return std::find(std::begin(kRefusedFilters), std::end(kRefusedFilters), name) != std::end(kRefusedFilters);
}

bool is_refused_test(std::string_view name) {
  return std::find(std::begin(kRefusedTests), std::end(kRefusedTests), name) != std::end(kRefusedTests);
}

ValueFunction require_filter(std::string_view name) {
  if (const ValueFunction found = find_filter(name)) return found;
  if (is_refused_filter(name)) fail_unsupported(format("the filter {}", name), "use other filters");
  fail(format("there is no filter {}", quoted_for_message(name)), "use one that Jinja2 has");
}

ValueFunction require_test(std::string_view name) {
  if (const ValueFunction found = find_test(name)) return found;
  if (is_refused_test(name)) fail_unsupported(format("the test {}", name), "use other tests or operators");
  fail(format("there is no test {}", quoted_for_message(name)), "use one that Jinja2 has");
}

AttributePath::AttributePath(Heap& heap, const Value* path) {
  if (path == nullptr || path->is(Kind::none)) return;
  if (!path->is(Kind::string)) {
    parts_.push_back(*path);
    return;
  }
  std::string_view rest = path->text();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t number = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (digits && std::from_chars(part.data(), part.data() + part.size(), number).ec == std::errc()) {
      parts_.push_back(Value::integer(number));
    } else {
      parts_.push_back(heap.text(std::string(part)));
    }
    if (dot == std::string_view::npos) return;
    rest.remove_prefix(dot + 1);
  }
}

Value AttributePath::look_up(Heap& heap, Value value, const Value* fallback) const {
  for (const Value& part : parts_) {
    heap.budget().step();
    value = get_item(heap, value, part);
    if (value.is(Kind::undefined) && fallback != nullptr && !fallback->is(Kind::none)) value = *fallback;
  }
  return value;
}

Value without_case(Heap& heap, const Value& value) {
  return value.is(Kind::string) ? heap.text(lower(value.text())) : value;
}

bool flag(const Value* value, bool fallback) {
  return value == nullptr ? fallback : truth(*value);
}

}  // namespace stepforge::jinja
