// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/markup.h"

#include <utility>
#include <vector>

namespace stepforge::jinja {

bool is_safe(const Value& value) {
  return value.is(Kind::string) && value.string().safe;
}

std::string html_escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&#34;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

Value escaped_unless_safe(Heap& heap, const Value& value) {
  if (!value.is(Kind::string) || is_safe(value)) return value;
  return heap.text(html_escaped(value.text()), true);
}

Value items_escaped_unless_safe(Heap& heap, const Value& value) {
  if (!value.is(Kind::list) && !value.is(Kind::tuple)) return value;
  std::vector<Value> items;
  items.reserve(value.items().size());
  for (const Value& item : value.items()) items.push_back(escaped_unless_safe(heap, item));
  return value.is(Kind::list) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

Value made_safe(Heap& heap, const Value& value) {
  if (value.is(Kind::string)) return is_safe(value) ? value : heap.text(value.text(), true);
  if (!value.is(Kind::list) && !value.is(Kind::tuple)) return value;
  std::vector<Value> items;
  items.reserve(value.items().size());
  for (const Value& item : value.items()) items.push_back(made_safe(heap, item));
  return value.is(Kind::list) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

void escape_arguments(Heap& heap, std::string_view name, Arguments& arguments) {
  const bool formats = name == "format";
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    Value& argument = arguments.positional[i];
    if (formats || (name == "replace" && i == 1)) argument = escaped_unless_safe(heap, argument);
    if (name == "join") argument = items_escaped_unless_safe(heap, argument);
  }
  if (!formats) return;
  for (auto& named : arguments.named) named.second = escaped_unless_safe(heap, named.second);
}

}  // namespace stepforge::jinja
