// SPDX-License-Identifier: Apache-2.0
// JSON as Python's json writes it, with the words NaN, Infinity and -Infinity, which are no JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// The text with null in place of these words outside of strings, as pandas writes them; nullopt if there are none.
std::optional<std::string> with_null_for_nan(std::string_view text);

}  // namespace stepforge
