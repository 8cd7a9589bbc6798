// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str and repr, JSON, and the % operator.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

/// As `str`. Throws Fault for values that Python shows with an address.
std::string str(Heap& heap, const Value& value);
std::string repr(Heap& heap, const Value& value);
/// The shortest decimal number that reads back as `value`, as Python writes it.
std::string float_text(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool indented = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// As json.dumps. Throws Fault for values that JSON has not.
std::string json_text(Heap& heap, const Value& value, const JsonStyle& style);

/// `pattern % arguments`.
std::string percent_format(Heap& heap, std::string_view pattern, const Value& arguments);

/// A format specification as of str.format: "[[fill]align][sign][#][0][width][grouping][.precision][type]".
struct FormatSpec {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = '\0';
  int64_t precision = -1;
  char type = '\0';
};
FormatSpec parse_format_spec(std::string_view spec);
std::string format_value(Heap& heap, const Value& value, const FormatSpec& spec);
/// printf of one number with conversion e, f, g or their capitals.
std::string printf_float(double value, char conversion, int64_t precision, bool alternate);
/// `body` at `width` code points; align: < > ^, or = between sign and digits.
std::string aligned(Heap& heap, const std::string& body, const FormatSpec& spec, char default_align);
/// Digits of `value` without sign, in base 2, 8, 10 or 16.
std::string digits_of(int64_t value, int base, bool capitals);

}  // namespace stepforge::jinja
