// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "stepforge/base/format.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {

[[noreturn]] void fail_operands(Operator op, const Value& left, const Value& right) {
  static constexpr std::string_view kNames[] = {"+", "-", "*", "/", "//", "%"};
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
    default:
      break;
  }
  if (right == 0) fail_zero();
  if (op != Operator::divide)
    fail_unsupported("the operator // or % with a float", "convert the operands with | int");
  return Value::floating(left / right);
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
    fail_unsupported("the operator % of a string", "use the filter format, or join with ~");
  if (op != Operator::multiply) return std::nullopt;
  const Value& sequence = left.is_integral() ? right : left;
  const Value& count = left.is_integral() ? left : right;
  if (!count.is_integral()) return std::nullopt;
  if (sequence.is(Kind::string))
    return heap.text(repeated(heap, sequence.text(), count.integer()), is_safe(sequence));
  if (sequence.is_sequence())
    fail_unsupported(format("the operator * of a {}", type_name(sequence)), "use range() and a loop");
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
