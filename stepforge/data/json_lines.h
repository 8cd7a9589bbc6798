// SPDX-License-Identifier: Apache-2.0
// One text field of each line of JSON Lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stepforge {

/// Longer lines are refused: one broken file must not take all memory.
inline constexpr int64_t kMaxJsonLineBytes = int64_t{256} << 20;

/// Reads `field` of every line of `text`. Blank lines are left out. Throws FormatError that starts with
/// place(line), of the line's number in `text`, counted from 1.
void read_json_lines(std::string_view text, const std::string& field,
                     const std::function<std::string(int64_t line)>& place,
                     const std::function<void(std::string_view)>& document);

}  // namespace stepforge
