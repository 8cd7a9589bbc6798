// SPDX-License-Identifier: Apache-2.0
// Safe strings, which `safe` and `escape` make: markupsafe's Markup. Text that is joined to one is escaped, and what its methods
// return is safe too. Jinja's `~`, `join` and `replace` see plain text, since templates of chats are not escaped by themselves.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

bool is_safe(const Value& value);
/// & < > " ' as entities of HTML.
std::string html_escaped(std::string_view text);
/// A string that is not safe escaped; other values as they are.
Value escaped_unless_safe(Heap& heap, const Value& value);
/// The strings in a list or tuple escaped unless they are safe.
Value items_escaped_unless_safe(Heap& heap, const Value& value);
/// A string, or the strings of a list or tuple, made safe.
Value made_safe(Heap& heap, const Value& value);

/// Escapes the arguments of the method `name` of a safe string that markupsafe escapes: those of format and join, and what replace puts
/// in.
void escape_arguments(Heap& heap, std::string_view name, Arguments& arguments);

}  // namespace stepforge::jinja
