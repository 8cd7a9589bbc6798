// SPDX-License-Identifier: Apache-2.0
// str.format.
#include <charconv>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/attributes.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {

class BracesFormat {
 public:
  BracesFormat(Heap& heap, const Arguments& arguments) : heap_(heap), arguments_(arguments) {}

  std::string run(std::string_view pattern, int depth) {
    if (depth > 2) fail("a format specification is nested too deep", "nest it once");
    std::string result;
    for (size_t at = 0; at < pattern.size();) {
      const char c = pattern[at];
      if (c != '{' && c != '}') {
        result += pattern[at++];
      } else if (at + 1 < pattern.size() && pattern[at + 1] == c) {
        result += c;
        at += 2;
      } else if (c == '}') {
        fail("a single '}' in a format", "write }}");
      } else {
        const size_t end = field_end(pattern, at);
        const size_t before = result.size();
        result += field(pattern.substr(at + 1, end - at - 1), depth);
        heap_.budget().step();
        heap_.budget().allocate(result.size() - before);
        at = end + 1;
      }
    }
    return result;
  }

 private:
  static size_t field_end(std::string_view pattern, size_t at) {
    int open = 0;
    for (; at < pattern.size(); ++at) {
      open += pattern[at] == '{' ? 1 : pattern[at] == '}' ? -1 : 0;
      if (open == 0) return at;
    }
    fail("a '{' in a format is not closed", "close it, or write {{");
  }

  std::string field(std::string_view text, int depth) {
    size_t name_end = 0;
    bool bracket = false;
    while (name_end < text.size() && (bracket || (text[name_end] != '!' && text[name_end] != ':'))) {
      bracket = text[name_end] == '[' || (bracket && text[name_end] != ']');
      ++name_end;
    }
    Value value = look_up(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        fail("a conversion of a format is not valid", "use !s or !r");
      if (rest[1] == 'r')
        value = heap_.text(repr(heap_, value));
      else if (rest[1] == 's')
        value = heap_.text(str(heap_, value));
      else
        fail_unsupported("a conversion other than !s and !r", "use those");
      rest.remove_prefix(2);
    }
    if (rest.starts_with(':')) rest.remove_prefix(1);
    const std::string spec = run(rest, depth + 1);
    if (spec.empty()) return str(heap_, value);
    return format_value(heap_, value, parse_format_spec(spec));
  }

  Value first(std::string_view name) {
    if (name.empty()) {
      if (manual_) fail("a format mixes {} and {0}", "use one of them");
      automatic_ = true;
      return positional(next_++);
    }
    if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      if (automatic_) fail("a format mixes {} and {0}", "use one of them");
      manual_ = true;
      size_t position = 0;
      std::from_chars(name.data(), name.data() + name.size(), position);
      return positional(position);
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    fail(format("a format uses {}, which is not passed", quoted_for_message(name)), "pass it by name");
  }

  Value positional(size_t position) {
    if (position >= arguments_.positional.size())
      fail(format("a format uses value {}, which is not passed", position), "pass more values");
    return arguments_.positional[position];
  }

  Value look_up(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      heap_.budget().step();
      if (name[at] == '.') {
        const size_t next = std::min(name.find_first_of(".[", at + 1), name.size());
        value = get_attribute(heap_, value, name.substr(at + 1, next - at - 1));
        at = next;
        continue;
      }
      const size_t close = name[at] == '[' ? name.find(']', at) : std::string_view::npos;
      if (close == std::string_view::npos)
        fail("a name in a format is not valid", "write {name.attribute} or {name[key]}");
      const std::string_view key = name.substr(at + 1, close - at - 1);
      int64_t number = 0;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), number);
      const bool is_number =
          !key.empty() && key[0] != '-' && parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
      value = get_item(heap_, value, is_number ? Value::integer(number) : heap_.text(std::string(key)));
      at = close + 1;
    }
    return value;
  }

  Heap& heap_;
  const Arguments& arguments_;
  size_t next_ = 0;
  bool automatic_ = false;
  bool manual_ = false;
};

}  // namespace

std::string braces_format(Heap& heap, std::string_view pattern, const Arguments& arguments) {
  return BracesFormat(heap, arguments).run(pattern, 1);
}

}  // namespace stepforge::jinja
