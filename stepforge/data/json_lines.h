// SPDX-License-Identifier: Apache-2.0
// Reads one text field from each line of JSON Lines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// Longer lines are refused, so that a broken file does not use up the memory.
inline constexpr int64_t kMaxJsonLineBytes = int64_t{256} << 20;

/// Calls `document` with `field` of every line of `text` that is not blank, or with the line itself if `field` is
/// not given. Throws FormatError that begins with location(line), `line` being the line's number in `text`,
/// counted from 1; also if `document` throws FormatError.
void read_json_lines(std::string_view text, const std::optional<std::string>& field,
                     const std::function<std::string(int64_t line)>& location,
                     const std::function<void(std::string_view)>& document);

}  // namespace stepforge
