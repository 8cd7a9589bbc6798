// SPDX-License-Identifier: Apache-2.0
// Numbers and strings at a width and precision: format specifications and the % operator.
#include <cmath>
#include <cstdio>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {

constexpr int64_t kMaxPrecision = 1000;

bool is_align(std::string_view text) {
  return text.size() == 1 && std::string_view("<>=^").find(text[0]) != std::string_view::npos;
}

/// Digits at `at`; -1 if there are none.
int64_t read_number(std::string_view text, size_t& at) {
  int64_t result = -1;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    result = std::max<int64_t>(result, 0) * 10 + (text[at++] - '0');
    if (result > INT32_MAX) fail("a width or precision is too large");
  }
  return result;
}

}  // namespace

std::string digits_of(int64_t value, int base, bool capitals) {
  uint64_t rest = value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  const std::string_view digits = capitals ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string result;
  do {
    result.insert(result.begin(), digits[rest % static_cast<uint64_t>(base)]);
    rest /= static_cast<uint64_t>(base);
  } while (rest != 0);
  return result;
}

std::string printf_float(double value, char conversion, int64_t precision, bool alternate) {
  if (precision > kMaxPrecision)
    fail_limit(format("a precision of {}", precision), "use at most 1000 digits");
  if (!std::isfinite(value)) {
    const bool capitals = conversion >= 'A' && conversion <= 'Z';
    const std::string text = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    return capitals ? upper(text) : text;
  }
  const std::string pattern = std::string("%") + (alternate ? "#" : "") + ".*" + conversion;
  std::string result(static_cast<size_t>(precision) + 400, '\0');
  const int size =
      std::snprintf(result.data(), result.size(), pattern.c_str(), static_cast<int>(precision), value);
  result.resize(static_cast<size_t>(size));
  return result;
}

std::string aligned(Heap& heap, const std::string& body, const FormatSpec& spec, char default_align) {
  const int64_t missing = spec.width - count_code_points(body);
  if (missing <= 0) return body;
  const char align = spec.align != '\0' ? spec.align : default_align;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  const std::string before = repeated(heap, spec.fill, left);
  const std::string after = repeated(heap, spec.fill, missing - left);
  const size_t sign =
      align == '=' && !body.empty() && (body[0] == '-' || body[0] == '+' || body[0] == ' ') ? 1 : 0;
  return body.substr(0, sign) + before + body.substr(sign) + after;
}

FormatSpec parse_format_spec(std::string_view spec) {
  FormatSpec result;
  size_t at = 0;
  const size_t first = spec.empty() ? 0 : utf8_sequence_length(spec);
  if (first > 0 && is_align(spec.substr(first, 1))) {
    result.fill = spec.substr(0, first);
    result.align = spec[first];
    at = first + 1;
  } else if (is_align(spec.substr(0, 1))) {
    result.align = spec[at++];
  }
  const auto take = [&](std::string_view letters) {
    return at < spec.size() && letters.find(spec[at]) != std::string_view::npos ? spec[at++] : '\0';
  };
  if (const char sign = take("+- ")) result.sign = sign;
  result.alternate = take("#") != '\0';
  if (take("0") != '\0' && result.align == '\0') {
    result.fill = "0";
    result.align = '=';
  }
  result.width = std::max<int64_t>(read_number(spec, at), 0);
  result.grouping = take(",_");
  if (take(".") != '\0') {
    result.precision = read_number(spec, at);
    if (result.precision < 0)
      fail(format("the format {} has no precision after '.'", quoted_for_message(spec)));
  }
  result.type = take("sdboxXceEfFgG%");
  if (at != spec.size()) fail(format("the format {} is not valid", quoted_for_message(spec)));
  return result;
}

namespace {

std::string grouped(const std::string& digits, const FormatSpec& spec, size_t group) {
  if (spec.grouping == '\0') return digits;
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string result;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % group == 0) result += spec.grouping;
    result += digits[i];
  }
  return result + digits.substr(whole);
}

std::string with_sign(bool negative, const std::string& digits, const FormatSpec& spec) {
  if (negative) return "-" + digits;
  return spec.sign == '-' ? digits : spec.sign + digits;
}

std::string float_body(double value, const FormatSpec& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const double magnitude = std::fabs(value);
  std::string digits;
  if (spec.type == '%') {
    digits =
        printf_float(magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.alternate) + "%";
  } else if (spec.type == '\0' && spec.precision < 0) {
    digits = float_text(magnitude);
  } else if (spec.type == '\0') {
    // Like g, but with a digit after the point, and one digit less before it turns to an exponent.
    digits = printf_float(magnitude, 'g', std::max<int64_t>(spec.precision, 1), spec.alternate);
    const int exponent = magnitude == 0 ? 0 : static_cast<int>(std::floor(std::log10(magnitude)));
    if (digits.find_first_of(".en") == std::string::npos) {
      if (exponent + 1 >= spec.precision)
        digits = printf_float(magnitude, 'e', std::max<int64_t>(spec.precision - 1, 0), false);
      else
        digits += ".0";
    }
  } else {
    digits = printf_float(magnitude, spec.type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
  }
  return with_sign(negative, grouped(digits, spec, 3), spec);
}

std::string integer_body(int64_t value, const FormatSpec& spec) {
  if (spec.precision >= 0) fail("a precision is not possible for an integer");
  const bool hex = spec.type == 'x' || spec.type == 'X';
  const int base = hex ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  std::string digits = grouped(digits_of(value, base, spec.type == 'X'), spec, base == 10 ? 3 : 4);
  if (spec.alternate && base != 10) digits = std::string("0") + spec.type + digits;
  return with_sign(value < 0, digits, spec);
}

void refuse_zero_grouping(const FormatSpec& spec) {
  if (spec.grouping != '\0' && spec.fill == "0" && spec.align == '=') {
    fail_unsupported("a format with leading zeros and grouping", "use one of them");
  }
}

std::string format_text(Heap& heap, std::string_view text, const FormatSpec& spec) {
  if (spec.align == '=' || (spec.type != '\0' && spec.type != 's') || spec.grouping != '\0' ||
      spec.sign != '-' || spec.alternate) {
    // "{:05}" aligns strings to the left, filled with zeros.
    if (!(spec.align == '=' && spec.fill == "0" && (spec.type == '\0' || spec.type == 's')))
      fail("the format does not fit a string");
  }
  FormatSpec used = spec;
  if (used.align == '=') used.align = '<';
  const std::string body(spec.precision >= 0 ? text.substr(0, offset_of(text, spec.precision)) : text);
  return aligned(heap, body, used, '<');
}

}  // namespace

std::string format_value(Heap& heap, const Value& value, const FormatSpec& spec) {
  if (value.is(Kind::string)) return format_text(heap, value.text(), spec);
  if (!value.is_number()) fail(format("the format does not fit {}", type_name(value)), "convert it with !s");
  refuse_zero_grouping(spec);
  const bool as_float =
      std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != '\0';
  if (spec.type == 's') fail("the format s needs a string");
  if (value.is(Kind::floating) || as_float) {
    if (spec.type != '\0' && !as_float)
      fail(format("the format {} does not fit a float", std::string(1, spec.type)));
    return aligned(heap, float_body(to_double(value), spec), spec, '>');
  }
  if (spec.type == 'c') fail_unsupported("the format c", "write the character");
  return aligned(heap, integer_body(value.integer(), spec), spec, '>');
}

namespace {

/// The operands of %, taken in order or by name.
class PercentArguments {
 public:
  explicit PercentArguments(const Value& value) : value_(value) {}

  const Value& next() {
    if (value_.is(Kind::tuple)) {
      if (used_ >= value_.items().size()) fail("not enough values for the % format");
      return value_.items()[used_++];
    }
    if (used_++ > 0) fail("not enough values for the % format");
    return value_;
  }

  const Value& named(std::string_view name) {
    if (!value_.is(Kind::dict)) fail("a % format with names needs a dict");
    const Value* found = find_in(value_.dict(), name);
    if (found == nullptr) fail(format("the dict of a % format has no key {}", quoted_for_message(name)));
    return *found;
  }

  void check_all_used() const {
    const bool some_left = value_.is(Kind::tuple) ? used_ < value_.items().size() : used_ == 0;
    const bool mapping = value_.is(Kind::dict) || value_.is(Kind::list) || value_.is(Kind::undefined) ||
                         value_.is(Kind::range);
    if (some_left && !mapping) fail("a % format has more values than places");
  }

 private:
  const Value& value_;
  size_t used_ = 0;
};

std::string percent_integer(const Value& value, char conversion, int64_t precision, FormatSpec& spec) {
  const bool decimal = conversion == 'd' || conversion == 'i' || conversion == 'u';
  if (value.is(Kind::undefined)) fail_undefined(value);
  if (!value.is_integral() && !(decimal && value.is(Kind::floating))) {
    fail(format("%{} needs a number, not {}", std::string(1, conversion), type_name(value)));
  }
  if (value.is(Kind::floating) && !(std::fabs(value.floating()) < 9.2e18))
    fail_limit("an integer needs more than 64 bits", "use smaller numbers");
  const int64_t number = value.is(Kind::floating) ? static_cast<int64_t>(value.floating()) : value.integer();
  const int base = decimal ? 10 : conversion == 'o' ? 8 : 16;
  std::string digits = digits_of(number, base, conversion == 'X');
  if (precision > kMaxPrecision)
    fail_limit(format("a precision of {}", precision), "use at most 1000 digits");
  if (static_cast<int64_t>(digits.size()) < precision)
    digits.insert(0, static_cast<size_t>(precision) - digits.size(), '0');
  if (spec.alternate && !decimal) digits = std::string("0") + conversion + digits;
  return with_sign(number < 0, digits, spec);
}

std::string percent_body(Heap& heap, const Value& value, char conversion, int64_t precision,
                         FormatSpec& spec) {
  std::string text;
  switch (conversion) {
    case 's':
      text = str(heap, value);
      break;
    case 'r':
      text = repr(heap, value);
      break;
    case 'c':
      if (!value.is(Kind::string) || value.string().length != 1)
        fail_unsupported("%c with anything but one character", "use %s");
      return value.text();
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      return percent_integer(value, conversion, precision, spec);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      if (value.is(Kind::undefined)) fail_undefined(value);
      if (!value.is_number())
        fail(format("%{} needs a number, not {}", std::string(1, conversion), type_name(value)));
      const double number = to_double(value);
      const bool negative = std::signbit(number) && !std::isnan(number);
      return with_sign(
          negative,
          printf_float(std::fabs(number), conversion, precision < 0 ? 6 : precision, spec.alternate), spec);
    }
    default:
      fail(format("the format %{} is unknown", quoted_for_message(std::string(1, conversion))));
  }
  if (spec.fill == "0") spec.fill = " ";
  return precision < 0 ? text : text.substr(0, offset_of(text, precision));
}

/// Formats the place after a '%' at `at`; returns what follows it.
size_t percent_place(Heap& heap, std::string_view pattern, size_t at, PercentArguments& arguments,
                     std::string& result) {
  const Value* value = nullptr;
  if (at < pattern.size() && pattern[at] == '(') {
    const size_t close = pattern.find(')', at);
    if (close == std::string_view::npos) fail("a name in a % format has no ')'");
    value = &arguments.named(pattern.substr(at + 1, close - at - 1));
    at = close + 1;
  }
  FormatSpec spec;
  bool left = false;
  bool zero = false;
  for (; at < pattern.size() && std::string_view("-+ #0").find(pattern[at]) != std::string_view::npos; ++at) {
    left = left || pattern[at] == '-';
    zero = zero || pattern[at] == '0';
    spec.alternate = spec.alternate || pattern[at] == '#';
    if (pattern[at] == '+' || (pattern[at] == ' ' && spec.sign != '+')) spec.sign = pattern[at];
  }
  if (at < pattern.size() && pattern[at] == '*')
    fail_unsupported("a * width in a % format", "write the width");
  spec.width = std::max<int64_t>(read_number(pattern, at), 0);
  int64_t precision = -1;
  if (at < pattern.size() && pattern[at] == '.') precision = std::max<int64_t>(read_number(pattern, ++at), 0);
  while (at < pattern.size() && std::string_view("hlL").find(pattern[at]) != std::string_view::npos) ++at;
  if (at >= pattern.size()) fail("a % format ends too early");
  if (pattern[at] == '%') {
    result += '%';
    return at + 1;
  }
  if (value == nullptr) value = &arguments.next();
  if (zero && !left) spec.fill = "0";
  std::string body = percent_body(heap, *value, pattern[at], precision, spec);
  spec.align = left ? '<' : spec.fill == "0" ? '=' : '>';
  result += aligned(heap, body, spec, '>');
  return at + 1;
}

}  // namespace

std::string percent_format(Heap& heap, std::string_view pattern, const Value& value) {
  PercentArguments arguments(value);
  std::string result;
  for (size_t at = 0; at < pattern.size();) {
    if (pattern[at] != '%') {
      result += pattern[at++];
      continue;
    }
    heap.budget().step();
    const size_t before = result.size();
    at = percent_place(heap, pattern, at + 1, arguments, result);
    heap.budget().allocate(result.size() - before);
  }
  arguments.check_all_used();
  return result;
}

}  // namespace stepforge::jinja
