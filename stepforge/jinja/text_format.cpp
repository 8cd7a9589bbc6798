// SPDX-License-Identifier: Apache-2.0
// The filter format with %s and %d, and str.format with plain fields.
#include <charconv>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {

std::string decimal(const Value& value) {
  if (value.is(Kind::undefined)) fail_undefined(value);
  if (value.is(Kind::floating)) fail_unsupported("the format d of a float", "use | int");
  if (!value.is_integral())
    fail(format("the format d needs an integer, not {}", type_name(value)), "convert it with | int");
  return std::to_string(value.integer());
}

/// The fields of str.format.
class Fields {
 public:
  explicit Fields(const Arguments& arguments) : arguments_(arguments) {}

  const Value& find(std::string_view name) {
    if (name.find_first_of(".[") != std::string_view::npos)
      fail_unsupported(format("the field {} in format()", quoted_for_message(name)), "pass the value itself");
    if (!name.empty() && name.find_first_not_of("0123456789") != std::string_view::npos) return named(name);
    (name.empty() ? automatic_ : manual_) = true;
    if (automatic_ && manual_) fail("a format mixes {} and {0}", "use one of them");
    size_t position = next_;
    if (name.empty())
      ++next_;
    else if (std::from_chars(name.data(), name.data() + name.size(), position).ec != std::errc())
      position = arguments_.positional.size();
    if (position >= arguments_.positional.size())
      fail(format("a format uses value {}, which is not passed", position), "pass more values");
    return arguments_.positional[position];
  }

 private:
  const Value& named(std::string_view name) const {
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    fail(format("a format uses {}, which is not passed", quoted_for_message(name)), "pass it by name");
  }

  const Arguments& arguments_;
  size_t next_ = 0;
  bool automatic_ = false;
  bool manual_ = false;
};

/// The text of "name", "name:d" or "name:s".
std::string field_text(Heap& heap, Fields& fields, std::string_view field) {
  const size_t name_end = std::min(field.find_first_of("!:"), field.size());
  const std::string_view style = field.substr(name_end);
  const Value& value = fields.find(field.substr(0, name_end));
  if (style.empty() || style == ":" || (style == ":s" && value.is(Kind::string))) return str(heap, value);
  if (style != ":d") {
    fail_unsupported(format("the format {}", quoted_for_message(style)), "use {}, or {:d} for integers");
  }
  return decimal(value);
}

}  // namespace

std::string percent_format(Heap& heap, std::string_view pattern, const std::vector<Value>& values) {
  size_t used = 0;
  const auto next = [&]() -> const Value& {
    if (used == values.size()) fail("not enough values for the % format", "pass one for each place");
    return values[used++];
  };
  std::string result;
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '%') {
      result += pattern[at];
      continue;
    }
    heap.budget().step();
    if (++at == pattern.size()) fail("a % format ends too early", "write %% for a percent sign");
    const size_t before = result.size();
    if (pattern[at] == '%')
      result += '%';
    else if (pattern[at] == 's')
      result += str(heap, next());
    else if (pattern[at] == 'd')
      result += decimal(next());
    else
      fail_unsupported(format("the format {}", quoted_for_message(pattern.substr(at - 1))),
                       "use %s or %d, without a width");
    heap.budget().allocate(result.size() - before);
  }
  if (used < values.size()) fail("a % format has more values than places", "pass one for each place");
  return result;
}

std::string braces_format(Heap& heap, std::string_view pattern, const Arguments& arguments) {
  Fields fields(arguments);
  std::string result;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c != '{' && c != '}') {
      result += c;
      continue;
    }
    if (at + 1 < pattern.size() && pattern[at + 1] == c) {
      result += pattern[at++];
      continue;
    }
    const size_t end = c == '{' ? pattern.find('}', at) : std::string_view::npos;
    if (end == std::string_view::npos) fail("a brace in a format has no partner", "close it, or double it");
    heap.budget().step();
    const std::string text = field_text(heap, fields, pattern.substr(at + 1, end - at - 1));
    heap.budget().allocate(text.size());
    result += text;
    at = end;
  }
  return result;
}

}  // namespace stepforge::jinja
