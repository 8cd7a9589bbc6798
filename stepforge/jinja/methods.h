// SPDX-License-Identifier: Apache-2.0
// The methods of values.
#pragma once

#include <span>
#include <string_view>

#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

struct Method {
  std::string_view name;
  ValueFunction function;  // null: Python has it, calling it is refused
  bool changes = false;    // the immutable sandbox forbids it
};

/// Null if the value's type has no such method.
const Method* find_method(const Value& object, std::string_view name);

std::span<const Method> string_methods();

// Python's str methods that filters use too. The strings are UTF-8.
std::string_view stripped(std::string_view text, const Value* characters, bool left, bool right);
std::string replaced(Heap& heap, std::string_view text, std::string_view old, std::string_view with,
                     int64_t count);
std::vector<std::string_view> lines_of(Heap& heap, std::string_view text, bool keep_ends);
std::string joined(Heap& heap, std::string_view separator, const std::vector<Value>& strings);
/// str.format.
std::string braces_format(Heap& heap, std::string_view pattern, const Arguments& arguments);

/// An argument of a type, or a Fault that names the function.
const std::string& text_argument(std::string_view function, const Value& value);
int64_t integer_argument(std::string_view function, const Value& value);

}  // namespace stepforge::jinja
