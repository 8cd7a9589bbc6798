// SPDX-License-Identifier: Apache-2.0
// Numbers from text, as Python's int() and float() read them, and rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stepforge::jinja {

/// Absent if it is no integer. Throws Fault (limit) beyond 64 bits.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);
/// round(value, digits): to even in ties, as written in decimal.
double rounded(double value, int64_t digits);
int64_t rounded_integer(int64_t value, int64_t digits);

}  // namespace stepforge::jinja
