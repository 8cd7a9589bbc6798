// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/numbers.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

#include "stepforge/jinja/budget.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {

/// Without the underscores between digits; false if one stands elsewhere.
bool remove_underscores(std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto alnum = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] != '_')
      plain += text[i];
    else if (i == 0 || !alnum(i - 1) || !alnum(i + 1))
      return false;
  }
  text = std::move(plain);
  return true;
}

int64_t base_of_prefix(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 0;
  const char letter = static_cast<char>(digits[1] | 0x20);
  return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  std::string digits(stripped_left(stripped_right(text)));
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const int64_t prefix = base_of_prefix(digits);
  if (base < 0 || base == 1 || base > 36) return std::nullopt;
  if (prefix != 0 && (base == 0 || base == prefix)) {
    digits.erase(0, digits.size() > 2 && digits[2] == '_' ? 3 : 2);
    base = prefix;
  } else if (base == 0) {
    base = 10;
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of("0_") != std::string::npos)
      return std::nullopt;
  }
  if (digits.empty() || !std::isalnum(static_cast<unsigned char>(digits[0])) || !remove_underscores(digits))
    return std::nullopt;
  if (negative) digits.insert(0, "-");
  int64_t value = 0;
  const auto parsed =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (parsed.ptr != digits.data() + digits.size()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range)
    fail_limit("an integer needs more than 64 bits", "use smaller numbers");
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<double> parse_float(std::string_view text) {
  std::string digits(stripped_left(stripped_right(text)));
  if (!remove_underscores(digits)) return std::nullopt;
  std::string_view rest = digits;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  const std::string word = lower(rest);
  double value = 0;
  if (word == "inf" || word == "infinity") {
    value = HUGE_VAL;
  } else if (word == "nan") {
    value = std::nan("");
  } else {
    if (rest.empty() || (rest[0] != '.' && (rest[0] < '0' || rest[0] > '9')) ||
        rest.find_first_of("xXpP") != std::string_view::npos) {
      return std::nullopt;
    }
    char* end = nullptr;
    const std::string copy(rest);
    value = std::strtod(copy.c_str(), &end);
    if (end != copy.c_str() + copy.size()) return std::nullopt;
  }
  return negative ? -value : value;
}

double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits < -308) return 0.0 * value;
  if (digits >= 0) return std::strtod(printf_float(value, 'f', digits, false).c_str(), nullptr);
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  const double lower = std::floor(std::fabs(value) / unit);
  const double rest = std::fabs(value) - lower * unit;
  const bool up = rest > unit / 2 || (rest == unit / 2 && std::fmod(lower, 2) != 0);
  return std::copysign((lower + (up ? 1 : 0)) * unit, value);
}

int64_t rounded_integer(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = digits; i < 0; ++i) unit *= 10;
  const int64_t rest = value % unit;
  const int64_t base = value - rest;
  const int64_t magnitude = rest < 0 ? -rest : rest;
  const bool up = magnitude > unit / 2 || (magnitude == unit / 2 && (base / unit) % 2 != 0);
  int64_t result = base;
  if (up && __builtin_add_overflow(base, rest < 0 ? -unit : unit, &result)) {
    fail_limit("an integer needs more than 64 bits", "use smaller numbers");
  }
  return result;
}

}  // namespace stepforge::jinja
