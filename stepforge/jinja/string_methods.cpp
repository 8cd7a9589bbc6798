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

namespace {

std::string_view last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return text.substr(at);
}

}  // namespace

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

void add(Heap& heap, std::vector<std::string_view>& parts, std::string_view part) {
  heap.budget().allocate(sizeof(std::string_view));
  parts.push_back(part);
}

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

Texts split_space_from_right(Heap& heap, std::string_view text, int64_t limit) {
  Texts parts;
  for (text = stripped_right(text); !text.empty(); text = stripped_right(text)) {
    if (limit-- == 0) {
      add(heap, parts, stripped_left(text));
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const std::string_view last = last_character(text.substr(0, begin));
      if (space_length(last) != 0) break;
      begin -= last.size();
    }
    add(heap, parts, text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
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

Texts split_at_from_right(Heap& heap, std::string_view text, std::string_view separator, int64_t limit) {
  Texts parts;
  for (; limit != 0 && text.size() >= separator.size(); --limit) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    add(heap, parts, text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  add(heap, parts, text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split_with(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool from_right) {
  const auto values = bind("split()", arguments, {"sep", "maxsplit"}, 0);
  const int64_t limit = values[1] == nullptr ? -1 : integer_argument("split()", *values[1]);
  Heap& heap = interpreter.heap();
  heap.budget().read_bytes(self.text().size());
  if (values[0] == nullptr || values[0]->is(Kind::none)) {
    return list_of(heap, from_right ? split_space_from_right(heap, self.text(), limit)
                                    : split_space(heap, self.text(), limit));
  }
  const std::string& separator = text_argument("split()", *values[0]);
  if (separator.empty()) fail("split() with an empty separator", "pass a separator, or none for white space");
  return list_of(heap, from_right ? split_at_from_right(heap, self.text(), separator, limit)
                                  : split_at(heap, self.text(), separator, limit));
}

Value split(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return split_with(interpreter, self, arguments, false);
}
Value rsplit(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return split_with(interpreter, self, arguments, true);
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

template <bool (*is)(char32_t)>
Value all_are(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  bind("the method", arguments, {}, 0);
  const std::string_view text = self.text();
  interpreter.heap().budget().step(static_cast<int64_t>(text.size() / 8));
  for (size_t at = 0; at < text.size(); at += utf8_sequence_length(text.substr(at))) {
    if (!is(decode_code_point(text.substr(at)))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

bool is_alnum(char32_t c) {
  return is_alpha(c) || is_numeric(c);
}

Value isascii(Interpreter&, const Value& self, Arguments& arguments) {
  bind("isascii()", arguments, {}, 0);
  return Value::boolean(self.string().ascii());
}

/// islower and isupper: some cased characters, and none of the other case.
template <bool (*is)(char32_t), bool (*is_other)(char32_t)>
Value cased(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  bind("the method", arguments, {}, 0);
  const std::string_view text = self.text();
  interpreter.heap().budget().step(static_cast<int64_t>(text.size() / 8));
  bool found = false;
  for (size_t at = 0; at < text.size(); at += utf8_sequence_length(text.substr(at))) {
    const char32_t c = decode_code_point(text.substr(at));
    if (is_other(c) || is_title(c)) return Value::boolean(false);
    found = found || is(c);
  }
  return Value::boolean(found);
}

Value istitle(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  bind("istitle()", arguments, {}, 0);
  const std::string_view text = self.text();
  interpreter.heap().budget().step(static_cast<int64_t>(text.size() / 8));
  bool found = false;
  bool inside = false;
  for (size_t at = 0; at < text.size(); at += utf8_sequence_length(text.substr(at))) {
    const char32_t c = decode_code_point(text.substr(at));
    const bool begins = is_upper(c) || is_title(c);
    if (begins ? inside : is_lower(c) && !inside) return Value::boolean(false);
    inside = begins || is_lower(c);
    found = found || inside;
  }
  return Value::boolean(found);
}

/// The bytes between the optional arguments start and end, and where they begin. False: start lies behind the end.
bool part_of(std::string_view function, const Value& self, const Value* start, const Value* end,
             std::string_view& part, size_t& begin) {
  const Text& text = self.string();
  const auto index = [&](const Value* value, int64_t fallback) {
    if (value == nullptr || value->is(Kind::none)) return fallback;
    int64_t result = integer_argument(function, *value);
    if (result < 0) result = std::max<int64_t>(result + text.length, 0);
    return result;
  };
  const int64_t from = index(start, 0);
  const int64_t to = std::min(index(end, text.length), text.length);
  if (from > to) return false;
  begin = offset_of(text.bytes, from);
  part = std::string_view(text.bytes).substr(begin, offset_of(text.bytes, to) - begin);
  return true;
}

/// The index in code points, or -1.
int64_t find_text(Interpreter& interpreter, std::string_view function, const Value& self,
                  const Arguments& arguments, bool last) {
  const auto values = bind(function, arguments, {"", "", ""}, 1);
  const std::string& wanted = text_argument(function, *values[0]);
  std::string_view part;
  size_t begin = 0;
  interpreter.heap().budget().read_bytes(self.text().size());
  if (!part_of(function, self, values[1], values[2], part, begin)) return -1;
  const size_t found = last ? part.rfind(wanted) : part.find(wanted);
  if (found == std::string_view::npos) return -1;
  return count_code_points(std::string_view(self.text()).substr(0, begin + found));
}

template <bool last, bool must>
Value find(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const int64_t found = find_text(interpreter, must ? "index()" : "find()", self, arguments, last);
  if (must && found < 0) fail("index() does not find the text", "use find(), which gives -1");
  return Value::integer(found);
}

Value count(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("count()", arguments, {"", "", ""}, 1);
  const std::string& wanted = text_argument("count()", *values[0]);
  std::string_view part;
  size_t begin = 0;
  interpreter.heap().budget().read_bytes(self.text().size());
  if (!part_of("count()", self, values[1], values[2], part, begin)) return Value::integer(0);
  if (wanted.empty()) return Value::integer(count_code_points(part) + 1);
  int64_t found = 0;
  for (size_t at = part.find(wanted); at != std::string_view::npos;
       at = part.find(wanted, at + wanted.size()))
    ++found;
  return Value::integer(found);
}

template <bool at_end>
Value has_affix(Interpreter&, const Value& self, Arguments& arguments) {
  const std::string_view function = at_end ? "endswith()" : "startswith()";
  const auto values = bind(function, arguments, {"", "", ""}, 1);
  std::string_view part;
  size_t begin = 0;
  const bool possible = part_of(function, self, values[1], values[2], part, begin);
  const auto fits = [&](const Value& affix) {
    const std::string& text = text_argument(function, affix);
    return possible && (at_end ? part.ends_with(text) : part.starts_with(text));
  };
  if (!values[0]->is(Kind::tuple)) return Value::boolean(fits(*values[0]));
  return Value::boolean(std::any_of(values[0]->items().begin(), values[0]->items().end(), fits));
}

template <bool at_end>
Value without_affix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("removeprefix()", arguments, {""}, 1);
  const std::string& affix = text_argument("removeprefix()", *values[0]);
  const std::string_view text = self.text();
  const bool fits = at_end ? text.ends_with(affix) : text.starts_with(affix);
  if (!fits) return self;
  return interpreter.heap().text(
      std::string(at_end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size())));
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

template <bool from_right>
Value partition(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("partition()", arguments, {""}, 1);
  const std::string& separator = text_argument("partition()", *values[0]);
  if (separator.empty()) fail("partition() with an empty separator", "pass a separator");
  Heap& heap = interpreter.heap();
  heap.budget().read_bytes(self.text().size());
  const std::string& text = self.text();
  const size_t found = from_right ? text.rfind(separator) : text.find(separator);
  if (found == std::string::npos) {
    return from_right ? heap.tuple({heap.text(""), heap.text(""), self})
                      : heap.tuple({self, heap.text(""), heap.text("")});
  }
  return heap.tuple(
      {heap.text(text.substr(0, found)), *values[0], heap.text(text.substr(found + separator.size()))});
}

template <char align>
Value justify(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("the method", arguments, {"", ""}, 1);
  FormatSpec spec;
  spec.width = integer_argument("the method", *values[0]);
  if (values[1] != nullptr) spec.fill = text_argument("the method", *values[1]);
  if (count_code_points(spec.fill) != 1) fail("the fill must be one character");
  const int64_t missing = spec.width - self.string().length;
  if (missing <= 0) return self;
  // str.center puts the odd character to the left if the width is odd.
  const int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & spec.width & 1);
  Heap& heap = interpreter.heap();
  return heap.text(repeated(heap, spec.fill, left) + self.text() + repeated(heap, spec.fill, missing - left));
}

Value zfill(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("zfill()", arguments, {""}, 1);
  const int64_t missing = integer_argument("zfill()", *values[0]) - self.string().length;
  const std::string& text = self.text();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  Heap& heap = interpreter.heap();
  return heap.text(text.substr(0, sign) + repeated(heap, "0", missing) + text.substr(sign));
}

Value expandtabs(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("expandtabs()", arguments, {"tabsize"}, 0);
  const int64_t size = values[0] == nullptr ? 8 : integer_argument("expandtabs()", *values[0]);
  Heap& heap = interpreter.heap();
  std::string result;
  int64_t column = 0;
  for (const char c : self.text()) {
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      result += repeated(heap, " ", spaces);
      column += spaces;
      continue;
    }
    result += c;
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++column;
    if (c == '\n' || c == '\r') column = 0;
  }
  return heap.text(std::move(result));
}

Value format_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return interpreter.heap().text(braces_format(interpreter.heap(), self.text(), arguments));
}

constexpr Method kMethods[] = {
    {"capitalize", changed<capitalized>},
    {"casefold", nullptr},
    {"center", justify<'^'>},
    {"count", count},
    {"encode", nullptr},
    {"endswith", has_affix<true>},
    {"expandtabs", expandtabs},
    {"find", find<false, false>},
    {"format", format_method},
    {"format_map", nullptr},
    {"index", find<false, true>},
    {"isalnum", all_are<is_alnum>},
    {"isalpha", all_are<is_alpha>},
    {"isascii", isascii},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"isidentifier", nullptr},
    {"islower", cased<is_lower, is_upper>},
    {"isnumeric", all_are<is_numeric>},
    {"isprintable", nullptr},
    {"isspace", all_are<is_space>},
    {"istitle", istitle},
    {"isupper", cased<is_upper, is_lower>},
    {"join", join},
    {"ljust", justify<'<'>},
    {"lower", changed<lower>},
    {"lstrip", strip<true, false>},
    {"maketrans", nullptr},
    {"partition", partition<false>},
    {"removeprefix", without_affix<false>},
    {"removesuffix", without_affix<true>},
    {"replace", replace},
    {"rfind", find<true, false>},
    {"rindex", find<true, true>},
    {"rjust", justify<'>'>},
    {"rpartition", partition<true>},
    {"rsplit", rsplit},
    {"rstrip", strip<false, true>},
    {"split", split},
    {"splitlines", splitlines},
    {"startswith", has_affix<false>},
    {"strip", strip<true, true>},
    {"swapcase", changed<swapped_case>},
    {"title", changed<title>},
    {"translate", nullptr},
    {"upper", changed<upper>},
    {"zfill", zfill},
};

}  // namespace string_method
}  // namespace

std::span<const Method> string_methods() {
  return string_method::kMethods;
}

}  // namespace stepforge::jinja
