// SPDX-License-Identifier: Apache-2.0
// The filters and tests of Jinja2.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

/// Null if there is no such filter or test, or one that is refused.
ValueFunction find_filter(std::string_view name);
ValueFunction find_test(std::string_view name);
/// Whether Jinja2 has the filter or test and it is not supported here.
bool is_refused_filter(std::string_view name);
bool is_refused_test(std::string_view name);
/// As find_filter and find_test; throw Fault instead of giving null.
ValueFunction require_filter(std::string_view name);
ValueFunction require_test(std::string_view name);

using NamedFunction = std::pair<std::string_view, ValueFunction>;
std::span<const NamedFunction> text_filters();      // text_filters.cpp
std::span<const NamedFunction> value_filters();     // value_filters.cpp
std::span<const NamedFunction> sequence_filters();  // sequence_filters.cpp
std::span<const NamedFunction> choice_filters();    // choice_filters.cpp
std::span<const NamedFunction> value_tests();       // value_tests.cpp

/// Looks up "name", "name.0.other", 3 or none (the value itself) in a value.
class AttributePath {
 public:
  AttributePath(Heap& heap, const Value* path);
  /// `fallback` (may be null or none) replaces undefined values on the way.
  Value look_up(Heap& heap, Value value, const Value* fallback = nullptr) const;

 private:
  std::vector<Value> parts_;
};

/// Strings in lower case, other values unchanged: what sorting without case compares.
Value without_case(Heap& heap, const Value& value);

/// An optional boolean argument.
bool flag(const Value* value, bool fallback = false);

}  // namespace stepforge::jinja
