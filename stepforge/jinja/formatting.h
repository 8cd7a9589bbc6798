// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str and repr, JSON and formats.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

/// As Python's str(). Throws Fault for functions, loops and the like.
std::string str(Heap& heap, const Value& value);
std::string repr(Heap& heap, const Value& value);
/// The shortest decimal that reads back as `value`, as Python's repr.
std::string float_text(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool indented = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// As json.dumps. Throws Fault for values that JSON does not have.
std::string json_text(Heap& heap, const Value& value, const JsonStyle& style);

/// `pattern | format(values)` and `pattern.format(arguments)`. Throw Fault for widths, precisions and the like.
std::string percent_format(Heap& heap, std::string_view pattern, const std::vector<Value>& values);
std::string braces_format(Heap& heap, std::string_view pattern, const Arguments& arguments);

}  // namespace stepforge::jinja
