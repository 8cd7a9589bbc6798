// SPDX-License-Identifier: Apache-2.0
// The methods of strings and dicts.
#pragma once

#include <span>
#include <string_view>

#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

struct Method {
  std::string_view name;
  ValueFunction function;
};

/// Null if there is no such method, or if it is hidden or refused.
const Method* find_method(const Value& object, std::string_view name);
/// Whether the method would change a list or dict, which the sandbox hides.
bool changes_value(Kind kind, std::string_view name);
/// Whether Python has the attribute and it is not supported here.
bool is_refused_attribute(Kind kind, std::string_view name);

std::span<const Method> string_methods();

// String methods that are also filters. The strings are UTF-8.
std::string_view stripped(std::string_view text, const Value* characters, bool left, bool right);
std::string replaced(Heap& heap, std::string_view text, std::string_view old, std::string_view with,
                     int64_t count);
std::vector<std::string_view> lines_of(Heap& heap, std::string_view text, bool keep_ends);
std::string joined(Heap& heap, std::string_view separator, const std::vector<Value>& strings);

/// The argument as that type. Throw Fault naming the function.
const std::string& text_argument(std::string_view function, const Value& value);
int64_t integer_argument(std::string_view function, const Value& value);

}  // namespace stepforge::jinja
