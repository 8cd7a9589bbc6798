// SPDX-License-Identifier: Apache-2.0
// Text formatting with fmt's syntax, without a fmt type in any header: libtorch brings another fmt than
// Debian's.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace stepforge {

using FormatArgument = std::variant<bool, int64_t, uint64_t, double, std::string_view>;

/// Formats `arguments` into `pattern` (fmt syntax: "{}", "{:>8.3f}"). Throws std::invalid_argument on a bad
/// pattern.
std::string format_arguments(std::string_view pattern, const std::vector<FormatArgument>& arguments);

namespace detail {
inline FormatArgument format_argument(bool value) {
  return value;
}
FormatArgument format_argument(char value) = delete;  // ambiguous: pass a string or a wider integer
template <std::signed_integral T>
FormatArgument format_argument(T value) {
  return static_cast<int64_t>(value);
}
template <std::unsigned_integral T>
FormatArgument format_argument(T value) {
  return static_cast<uint64_t>(value);
}
template <std::floating_point T>
FormatArgument format_argument(T value) {
  return static_cast<double>(value);
}
template <std::convertible_to<std::string_view> T>
FormatArgument format_argument(const T& value) {
  return std::string_view(value);
}
}  // namespace detail

/// format("{} of {:.1f}", name, share). Accepts booleans, integers, floating point numbers and strings.
template <typename... Args>
std::string format(std::string_view pattern, const Args&... arguments) {
  return format_arguments(pattern, {detail::format_argument(arguments)...});
}

/// "1,234,567"
std::string with_thousands(int64_t value);

/// "12.3 MiB": bytes in the largest binary unit that keeps the number at or above 1.
std::string human_bytes(int64_t bytes);

/// "1.24B", "6.5M", "12k": counts in powers of 1,000 with three significant digits.
std::string human_count(int64_t count);

/// "1h 02m", "3m 07s", "12.3s".
std::string human_duration(double seconds);

/// "[4, 128]"
std::string shape_text(const std::vector<int64_t>& shape);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// The candidate closest to `word` by edit distance if it is close enough for a typo, otherwise "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace stepforge
