// SPDX-License-Identifier: Apache-2.0
// Filters of single values: numbers, defaults, lengths.
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {
namespace value_filter {

Value default_filter(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("default", arguments, {"default_value", "boolean"}, 0);
  const bool replace = subject.is(Kind::undefined) || (flag(values[1]) && !truth(subject));
  if (!replace) return subject;
  return values[0] == nullptr ? interpreter.heap().text("") : *values[0];
}

/// Removes underscores between digits; false if there is one elsewhere.
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

/// As Python's int() and float() read text. Absent if it is not a number.
std::optional<int64_t> parse_integer(std::string_view text) {
  std::string digits(stripped_left(stripped_right(text)));
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.empty() || digits[0] < '0' || digits[0] > '9' || !remove_underscores(digits))
    return std::nullopt;
  if (negative) digits.insert(0, "-");
  int64_t value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
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

/// int() of a float. Throws Fault if it does not fit.
Value truncated(double value) {
  if (!(std::fabs(value) < 9.2233720368547e18))
    fail_limit("an integer needs more than 64 bits", "use smaller numbers");
  return Value::integer(static_cast<int64_t>(value));
}

Value int_filter(Interpreter&, const Value& subject, Arguments& arguments) {
  const auto values = bind("int", arguments, {"default", "base"}, 0);
  Value fallback = values[0] == nullptr ? Value::integer(0) : *values[0];
  if (values[1] != nullptr) fail_unsupported("the filter int with a base", "write the number in decimal");
  if (subject.is(Kind::undefined)) fail_undefined(subject);
  if (subject.is_integral()) return Value::integer(subject.integer());
  if (subject.is(Kind::floating)) {
    if (std::isinf(subject.floating())) fail("infinity cannot become an integer");
    return std::isnan(subject.floating()) ? fallback : truncated(subject.floating());
  }
  if (!subject.is(Kind::string)) return fallback;
  if (const auto integer = parse_integer(subject.text())) return Value::integer(*integer);
  const auto number = parse_float(subject.text());
  return number && std::isfinite(*number) ? truncated(*number) : fallback;
}

Value float_filter(Interpreter&, const Value& subject, Arguments& arguments) {
  const auto values = bind("float", arguments, {"default"}, 0);
  Value fallback = values[0] == nullptr ? Value::floating(0) : *values[0];
  if (subject.is(Kind::undefined)) fail_undefined(subject);
  if (subject.is_number()) return Value::floating(to_double(subject));
  if (!subject.is(Kind::string)) return fallback;
  const auto number = parse_float(subject.text());
  return number ? Value::floating(*number) : fallback;
}

Value length_filter(Interpreter&, const Value& subject, Arguments& arguments) {
  bind("length", arguments, {}, 0);
  return Value::integer(length(subject));
}

constexpr NamedFunction kFilters[] = {
    {"count", length_filter}, {"d", default_filter}, {"default", default_filter},
    {"float", float_filter},  {"int", int_filter},   {"length", length_filter},
};

}  // namespace value_filter
}  // namespace

std::span<const NamedFunction> value_filters() {
  return value_filter::kFilters;
}

}  // namespace stepforge::jinja
