// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/markup.h"

#include <utility>
#include <vector>

namespace stepforge::jinja {

bool is_safe(const Value& value) {
  return value.is(Kind::string) && value.string().safe;
}

std::string html_escaped(std::string_view text) {
  static constexpr std::string_view kSpecial = "&<>\"'";
  static constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const size_t i = kSpecial.find(c);
    if (i == std::string_view::npos)
      result += c;
    else
      result += kEntities[i];
  }
  return result;
}

Value escaped_unless_safe(Heap& heap, const Value& value) {
  if (!value.is(Kind::string) || is_safe(value)) return value;
  return heap.text(html_escaped(value.text()), true);
}

Value made_safe(Heap& heap, const Value& value) {
  if (value.is(Kind::string)) return is_safe(value) ? value : heap.text(value.text(), true);
  if (!value.is(Kind::list) && !value.is(Kind::tuple)) return value;
  std::vector<Value> items;
  items.reserve(value.items().size());
  for (const Value& item : value.items()) items.push_back(made_safe(heap, item));
  return value.is(Kind::list) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

}  // namespace stepforge::jinja
