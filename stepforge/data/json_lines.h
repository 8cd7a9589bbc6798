// One text field of each line of a JSON Lines range.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stepforge {

/// Longer lines are refused: one broken file must not take all memory.
inline constexpr int64_t kMaxJsonLineBytes = int64_t{256} << 20;

/// Reads `field` of every line of file[begin, end), which begins at a line. Blank lines are left out. Throws
/// FormatError naming `name` and the line.
void read_json_lines(std::string_view file, int64_t begin, int64_t end, const std::string& field,
                     const std::string& name, const std::function<void(std::string_view)>& document);

}  // namespace stepforge
