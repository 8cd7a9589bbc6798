// SPDX-License-Identifier: Apache-2.0
// Attributes, items and slices, in Jinja2's order of lookup and within its sandbox.
#pragma once

#include <string_view>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

/// `object.name`: first methods, then items. Undefined if there is neither, or if the sandbox forbids it.
Value get_attribute(Heap& heap, const Value& object, std::string_view name);

/// `object[key]`: first items, then methods.
Value get_item(Heap& heap, const Value& object, const Value& key);

/// `object[start:stop:step]`; none for what is left out.
Value get_slice(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step);

}  // namespace stepforge::jinja
