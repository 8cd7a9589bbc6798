// SPDX-License-Identifier: Apache-2.0
// Python's operators on values. All throw Fault where Python raises.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/tree.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

bool truth(const Value& value);
bool equal(Budget& budget, const Value& left, const Value& right);
bool less(Heap& heap, const Value& left, const Value& right);
/// ==, !=, <, <=, >, >=, in, not in.
bool compare(Heap& heap, Operator op, const Value& left, const Value& right);
bool contains(Heap& heap, const Value& container, const Value& item);
/// Equal values have equal hashes. Throws Fault for lists, dicts and views.
size_t hash_of(Budget& budget, const Value& value);

Value arithmetic(Heap& heap, Operator op, const Value& left, const Value& right);
Value negated(const Value& value);
Value unchanged(const Value& value);  ///< unary plus
/// Of a number; integers beyond 2^53 are rounded.
double to_double(const Value& number);

/// The values of an iterable, in order. A generator can be read once.
Next iterate(Heap& heap, const Value& value);
bool is_iterable(const Value& value);
std::vector<Value> all_of(Heap& heap, const Value& value);
/// len(), or -1 if the value has none.
int64_t length_or_none(const Value& value);
int64_t length(const Value& value);
Value item_of_range(const Range& range, int64_t index);
/// The key, value or pair at a position of a view.
Value item_of_view(Heap& heap, const View& view, size_t position);
/// One code point of a string; negative counts from the end. Missing if there is none.
Value character(Heap& heap, const Value& text, int64_t index);
std::string repeated(Heap& heap, std::string_view text, int64_t count);

/// Throws the error of using an undefined value.
[[noreturn]] void fail_undefined(const Value& value);

}  // namespace stepforge::jinja
