// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>

#include "stepforge/base/format.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {

[[noreturn]] void fail_operands(Operator op, const Value& left, const Value& right) {
  static constexpr std::string_view kNames[] = {"+", "-", "*", "/", "//", "%", "**"};
  if (left.is(Kind::undefined)) fail_undefined(left);
  if (right.is(Kind::undefined)) fail_undefined(right);
  fail(format("'{}' is not supported for {} and {}", kNames[static_cast<int>(op)], type_name(left),
              type_name(right)),
       op == Operator::add ? "convert with | string or | int, or join with ~" : "convert the operands");
}

[[noreturn]] void fail_size() {
  fail_limit("an integer needs more than 64 bits", "compute with smaller numbers");
}

[[noreturn]] void fail_zero() {
  fail("division by zero", "test the divisor first");
}

int64_t floor_quotient(int64_t left, int64_t right) {
  if (right == -1) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, left, &result)) fail_size();
    return result;
  }
  return left / right - (left % right != 0 && (left < 0) != (right < 0) ? 1 : 0);
}

int64_t floor_remainder(int64_t left, int64_t right) {
  if (right == -1) return 0;
  const int64_t remainder = left % right;
  return remainder != 0 && (remainder < 0) != (right < 0) ? remainder + right : remainder;
}

double float_remainder(double left, double right) {
  double result = std::fmod(left, right);
  if (result != 0) {
    if ((right < 0) != (result < 0)) result += right;
  } else {
    result = std::copysign(0.0, right);
  }
  return result;
}

double float_floor_quotient(double left, double right) {
  const double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder != 0 && (right < 0) != (remainder < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, left / right);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

double float_power(double left, double right) {
  if (left == 0 && right < 0) fail("zero cannot be raised to a negative power");
  if (left < 0 && std::isfinite(left) && std::isfinite(right) && right != std::floor(right)) {
    fail_unsupported("a complex number (a negative number to a fractional power)", "use a positive base");
  }
  const double result = std::pow(left, right);
  if (std::isinf(result) && std::isfinite(left) && std::isfinite(right))
    fail("the result of ** is too large");
  return result;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0)
    return Value::floating(float_power(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_size();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_size();
  }
  return Value::integer(result);
}

Value integer_arithmetic(Operator op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case Operator::add:
      if (__builtin_add_overflow(left, right, &result)) fail_size();
      return Value::integer(result);
    case Operator::subtract:
      if (__builtin_sub_overflow(left, right, &result)) fail_size();
      return Value::integer(result);
    case Operator::multiply:
      if (__builtin_mul_overflow(left, right, &result)) fail_size();
      return Value::integer(result);
    case Operator::power:
      return integer_power(left, right);
    default:
      break;
  }
  if (right == 0) fail_zero();
  if (op == Operator::divide) {
    // Exact operands round once; larger ones are rounded together in extended precision.
    return Value::floating(
        static_cast<double>(static_cast<long double>(left) / static_cast<long double>(right)));
  }
  return Value::integer(op == Operator::floor_divide ? floor_quotient(left, right)
                                                     : floor_remainder(left, right));
}

Value float_arithmetic(Operator op, double left, double right) {
  switch (op) {
    case Operator::add:
      return Value::floating(left + right);
    case Operator::subtract:
      return Value::floating(left - right);
    case Operator::multiply:
      return Value::floating(left * right);
    case Operator::power:
      return Value::floating(float_power(left, right));
    default:
      break;
  }
  if (right == 0) fail_zero();
  if (op == Operator::divide) return Value::floating(left / right);
  return Value::floating(op == Operator::floor_divide ? float_floor_quotient(left, right)
                                                      : float_remainder(left, right));
}

Value repeated_items(Heap& heap, const Value& sequence, int64_t count) {
  const auto& items = sequence.items();
  std::vector<Value> result;
  if (count > 0 && !items.empty()) {
    int64_t total = 0;
    if (__builtin_mul_overflow(static_cast<int64_t>(items.size() * sizeof(Value)), count, &total))
      total = INT64_MAX / 2;
    heap.budget().allocate(static_cast<size_t>(total));
    for (int64_t i = 0; i < count; ++i) result.insert(result.end(), items.begin(), items.end());
  }
  return sequence.is(Kind::list) ? heap.list(std::move(result)) : heap.tuple(std::move(result));
}

/// `pattern % values` of a safe pattern.
Value safe_percent(Heap& heap, const std::string& pattern, const Value& values) {
  if (values.is(Kind::dict) || pattern.find("%r") != std::string::npos ||
      pattern.find("%a") != std::string::npos) {
    fail_unsupported("% with a safe string and names, %r or %a",
                     "use positional %s and %d, or apply `safe` last");
  }
  const Value escaped =
      values.is(Kind::tuple) ? items_escaped_unless_safe(heap, values) : escaped_unless_safe(heap, values);
  return heap.text(percent_format(heap, pattern, escaped), true);
}

Value sum_of_texts(Heap& heap, const Value& left, const Value& right) {
  const bool safe = is_safe(left) || is_safe(right);
  const Value first = safe ? escaped_unless_safe(heap, left) : left;
  const Value second = safe ? escaped_unless_safe(heap, right) : right;
  heap.budget().allocate(first.text().size() + second.text().size());
  return heap.text(first.text() + second.text(), safe);
}

std::optional<Value> sequence_arithmetic(Heap& heap, Operator op, const Value& left, const Value& right) {
  if (op == Operator::add && left.kind() == right.kind()) {
    if (left.is(Kind::string)) return sum_of_texts(heap, left, right);
    if (left.is_sequence()) {
      heap.budget().step(static_cast<int64_t>((left.items().size() + right.items().size()) / 4));
      std::vector<Value> items = left.items();
      items.insert(items.end(), right.items().begin(), right.items().end());
      return left.is(Kind::list) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
    }
  }
  if (op == Operator::modulo && left.is(Kind::string))
    return is_safe(left) ? safe_percent(heap, left.text(), right)
                         : heap.text(percent_format(heap, left.text(), right));
  if (op != Operator::multiply) return std::nullopt;
  const Value& sequence = left.is_integral() ? right : left;
  const Value& count = left.is_integral() ? left : right;
  if (!count.is_integral()) return std::nullopt;
  if (sequence.is(Kind::string))
    return heap.text(repeated(heap, sequence.text(), count.integer()), is_safe(sequence));
  if (sequence.is_sequence()) return repeated_items(heap, sequence, count.integer());
  return std::nullopt;
}

}  // namespace

std::string repeated(Heap& heap, std::string_view text, int64_t count) {
  std::string result;
  if (count <= 0 || text.empty()) return result;
  int64_t total = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(text.size()), count, &total)) total = INT64_MAX / 2;
  heap.budget().allocate(static_cast<size_t>(total));
  result.reserve(static_cast<size_t>(total));
  for (int64_t i = 0; i < count; ++i) result += text;
  return result;
}

Value arithmetic(Heap& heap, Operator op, const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral())
    return integer_arithmetic(op, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return float_arithmetic(op, to_double(left), to_double(right));
  if (left.is(Kind::undefined) ||
      (right.is(Kind::undefined) && !(op == Operator::modulo && left.is(Kind::string)))) {
    fail_operands(op, left, right);
  }
  if (std::optional<Value> result = sequence_arithmetic(heap, op, left, right)) return *result;
  fail_operands(op, left, right);
}

double to_double(const Value& number) {
  return number.is(Kind::floating) ? number.floating() : static_cast<double>(number.integer());
}

Value negated(const Value& value) {
  if (value.is(Kind::floating)) return Value::floating(-value.floating());
  if (value.is_integral()) return integer_arithmetic(Operator::subtract, 0, value.integer());
  if (value.is(Kind::undefined)) fail_undefined(value);
  fail(format("'-' is not supported for {}", type_name(value)));
}

Value unchanged(const Value& value) {
  if (value.is(Kind::floating)) return value;
  if (value.is_integral()) return Value::integer(value.integer());
  if (value.is(Kind::undefined)) fail_undefined(value);
  fail(format("'+' is not supported for {}", type_name(value)));
}

}  // namespace stepforge::jinja
