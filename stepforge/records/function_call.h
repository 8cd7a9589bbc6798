// SPDX-License-Identifier: Apache-2.0
// Calls of tools that a data set holds as text, as ShareGPT's turn "function_call" does.
#pragma once

#include <string>

#include "stepforge/base/json.h"

namespace stepforge {

/// The assistant's message with `tool_calls` that `text` says: {"name": ..., "arguments": {...}} or a list of them, the
/// arguments as an object or as a text that holds one; {"type": "function", "function": {...}} is taken too. A thought
/// <think>...</think> before the call becomes the content, as in LLaMA-Factory. `place` stands in errors.
/// Throws FormatError if it is no such call.
Json read_function_call(const std::string& text, const std::string& place);

}  // namespace stepforge
