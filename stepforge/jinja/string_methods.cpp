// SPDX-License-Identifier: Apache-2.0
// The methods of str.
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {

const std::string& text_argument(std::string_view function, const Value& value) {
  if (value.is(Kind::undefined)) fail_undefined(value);
  if (!value.is(Kind::string))
    fail(format("{} needs a string, not {}", function, type_name(value)), "convert it with | string");
  return value.text();
}

int64_t integer_argument(std::string_view function, const Value& value) {
  if (value.is(Kind::undefined)) fail_undefined(value);
  if (!value.is_integral())
    fail(format("{} needs an integer, not {}", function, type_name(value)), "convert it with | int");
  return value.integer();
}

std::string_view stripped(std::string_view text, const Value* characters, bool left, bool right) {
  if (characters == nullptr || characters->is(Kind::none)) {
    if (left) text = stripped_left(text);
    return right ? stripped_right(text) : text;
  }
  const std::string_view set = text_argument("strip()", *characters);
  const auto in_set = [set](std::string_view c) { return set.find(c) != std::string_view::npos; };
  while (left && !text.empty() && in_set(text.substr(0, utf8_sequence_length(text))))
    text.remove_prefix(utf8_sequence_length(text));
  while (right && !text.empty() && in_set(last_character(text)))
    text.remove_suffix(last_character(text).size());
  return text;
}

std::string replaced(Heap& heap, std::string_view text, std::string_view old, std::string_view with,
                     int64_t count) {
  heap.budget().read_bytes(text.size());
  std::string result;
  size_t at = 0;
  const auto insert = [&] {
    heap.budget().step();
    heap.budget().allocate(with.size());
    result += with;
  };
  for (; count != 0; --count) {
    const size_t found = text.find(old, at);
    if (found == std::string_view::npos) break;
    result += text.substr(at, found - at);
    insert();
    at = found + old.size();
    if (!old.empty()) continue;
    // An empty pattern matches before every character and at the end.
    if (at == text.size()) return result;
    const size_t length = utf8_sequence_length(text.substr(at));
    result += text.substr(at, length);
    at += length;
  }
  return result += text.substr(at);
}

namespace {

void add(Heap& heap, std::vector<std::string_view>& parts, std::string_view part) {
  heap.budget().allocate(sizeof(std::string_view));
  parts.push_back(part);
}

}  // namespace

std::vector<std::string_view> lines_of(Heap& heap, std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_sequence_length(text.substr(at));
    const char32_t c = decode_code_point(text.substr(at));
    const bool ends = (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    size_t next = at + length;
    if (ends) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      add(heap, lines, text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) add(heap, lines, text.substr(begin));
  return lines;
}

std::string joined(Heap& heap, std::string_view separator, const std::vector<Value>& strings) {
  std::string result;
  for (size_t i = 0; i < strings.size(); ++i) {
    if (!strings[i].is(Kind::string))
      fail(format("join() needs strings, not {}", type_name(strings[i])), "use | join, which converts them");
    heap.budget().step();
    heap.budget().allocate(strings[i].text().size() + separator.size());
    if (i > 0) result += separator;
    result += strings[i].text();
  }
  return result;
}

namespace {
namespace string_method {

using Texts = std::vector<std::string_view>;

Value list_of(Heap& heap, const Texts& parts) {
  std::vector<Value> values;
  heap.budget().allocate(parts.size() * sizeof(Value));
  for (const std::string_view part : parts) values.push_back(heap.text(std::string(part)));
  return heap.list(std::move(values));
}

Texts split_space(Heap& heap, std::string_view text, int64_t limit) {
  Texts parts;
  for (text = stripped_left(text); !text.empty(); text = stripped_left(text)) {
    if (limit-- == 0) {
      add(heap, parts, stripped_right(text));
      break;
    }
    size_t end = 0;
    while (end < text.size() && space_length(text.substr(end)) == 0)
      end += utf8_sequence_length(text.substr(end));
    add(heap, parts, text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

Texts split_at(Heap& heap, std::string_view text, std::string_view separator, int64_t limit) {
  Texts parts;
  size_t at = 0;
  for (; limit != 0; --limit) {
    const size_t found = text.find(separator, at);
    if (found == std::string_view::npos) break;
    add(heap, parts, text.substr(at, found - at));
    at = found + separator.size();
  }
  add(heap, parts, text.substr(at));
  return parts;
}

Value split(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("split()", arguments, {"sep", "maxsplit"}, 0);
  const int64_t limit = values[1] == nullptr ? -1 : integer_argument("split()", *values[1]);
  Heap& heap = interpreter.heap();
  heap.budget().read_bytes(self.text().size());
  if (values[0] == nullptr || values[0]->is(Kind::none))
    return list_of(heap, split_space(heap, self.text(), limit));
  const std::string& separator = text_argument("split()", *values[0]);
  if (separator.empty()) fail("split() with an empty separator", "pass a separator, or none for white space");
  return list_of(heap, split_at(heap, self.text(), separator, limit));
}

Value splitlines(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("splitlines()", arguments, {"keepends"}, 0);
  Heap& heap = interpreter.heap();
  heap.budget().read_bytes(self.text().size());
  return list_of(heap, lines_of(heap, self.text(), values[0] != nullptr && truth(*values[0])));
}

template <bool left, bool right>
Value strip(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("strip()", arguments, {""}, 0);
  interpreter.heap().budget().read_bytes(self.text().size());
  return interpreter.heap().text(std::string(stripped(self.text(), values[0], left, right)));
}

template <std::string (*change)(std::string_view)>
Value changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  bind("the method", arguments, {}, 0);
  interpreter.heap().budget().step(static_cast<int64_t>(self.text().size() / 8));
  return interpreter.heap().text(change(self.text()));
}

template <bool at_end>
Value has_affix(Interpreter&, const Value& self, Arguments& arguments) {
  const std::string_view function = at_end ? "endswith()" : "startswith()";
  if (arguments.positional.size() > 1)
    fail_unsupported(format("{} with a start", function), "cut the string with [:] first");
  const auto values = bind(function, arguments, {""}, 1);
  const auto fits = [&](const Value& affix) {
    const std::string& text = text_argument(function, affix);
    return at_end ? self.text().ends_with(text) : self.text().starts_with(text);
  };
  if (!values[0]->is(Kind::tuple)) return Value::boolean(fits(*values[0]));
  return Value::boolean(std::any_of(values[0]->items().begin(), values[0]->items().end(), fits));
}

Value replace(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("replace()", arguments, {"", "", ""}, 2);
  const std::string& old = text_argument("replace()", *values[0]);
  const std::string& with = text_argument("replace()", *values[1]);
  const int64_t limit = values[2] == nullptr ? -1 : integer_argument("replace()", *values[2]);
  return interpreter.heap().text(replaced(interpreter.heap(), self.text(), old, with, limit));
}

Value join(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("join()", arguments, {""}, 1);
  return interpreter.heap().text(
      joined(interpreter.heap(), self.text(), all_of(interpreter.heap(), *values[0])));
}

Value format_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return interpreter.heap().text(braces_format(interpreter.heap(), self.text(), arguments));
}

constexpr Method kMethods[] = {
    {"capitalize", changed<capitalized>},
    {"endswith", has_affix<true>},
    {"format", format_method},
    {"join", join},
    {"lower", changed<lower>},
    {"lstrip", strip<true, false>},
    {"replace", replace},
    {"rstrip", strip<false, true>},
    {"split", split},
    {"splitlines", splitlines},
    {"startswith", has_affix<false>},
    {"strip", strip<true, true>},
    {"title", changed<title>},
    {"upper", changed<upper>},
};

}  // namespace string_method
}  // namespace

std::span<const Method> string_methods() {
  return string_method::kMethods;
}

}  // namespace stepforge::jinja
