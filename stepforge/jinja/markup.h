// SPDX-License-Identifier: Apache-2.0
// Safe strings, which `safe` and `escape` make: markupsafe's Markup. `+` escapes the text beside one, and its methods return
// safe strings. `~` and the filters join and replace see plain text, since chat templates are not escaped automatically.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

bool is_safe(const Value& value);
/// Replaces & < > " ' by HTML entities.
std::string html_escaped(std::string_view text);
/// Escapes a string that is not safe; returns other values unchanged.
Value escaped_unless_safe(Heap& heap, const Value& value);
/// Marks a string, or the strings of a list or tuple, as safe.
Value made_safe(Heap& heap, const Value& value);

}  // namespace stepforge::jinja
