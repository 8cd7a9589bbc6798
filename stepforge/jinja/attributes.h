// SPDX-License-Identifier: Apache-2.0
// Attributes, items and slices, with the look-up order and the sandbox of Jinja2.
#pragma once

#include <string_view>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

/// `object.name`: an attribute (a method) before an item; undefined if there is neither, or if the sandbox forbids it.
Value get_attribute(Heap& heap, const Value& object, std::string_view name);

/// `object[key]`: an item before an attribute.
Value get_item(Heap& heap, const Value& object, const Value& key);

/// `object[start:stop:step]`; none for what is left out.
Value get_slice(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step);

}  // namespace stepforge::jinja
