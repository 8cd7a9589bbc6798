// SPDX-License-Identifier: Apache-2.0
// Filters of single values: numbers, defaults, attributes.
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/jinja/attributes.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/numbers.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {
namespace value_filter {

Value abs_filter(Interpreter&, const Value& subject, Arguments& arguments) {
  bind("abs", arguments, {}, 0);
  if (subject.is(Kind::floating)) return Value::floating(std::fabs(subject.floating()));
  if (!subject.is_integral())
    fail(format("abs needs a number, not {}", type_name(subject)), "convert it with | int");
  return subject.integer() < 0 ? negated(subject) : unchanged(subject);
}

Value default_filter(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("default", arguments, {"default_value", "boolean"}, 0);
  const bool replace = subject.is(Kind::undefined) || (flag(values[1]) && !truth(subject));
  if (!replace) return subject;
  return values[0] == nullptr ? interpreter.heap().text("") : *values[0];
}

/// int() of a float, which must fit.
Value truncated(double value) {
  if (!(std::fabs(value) < 9.2233720368547e18))
    fail_limit("an integer needs more than 64 bits", "use smaller numbers");
  return Value::integer(static_cast<int64_t>(value));
}

Value int_filter(Interpreter&, const Value& subject, Arguments& arguments) {
  const auto values = bind("int", arguments, {"default", "base"}, 0);
  Value fallback = values[0] == nullptr ? Value::integer(0) : *values[0];
  const int64_t base = values[1] == nullptr ? 10 : integer_argument("int", *values[1]);
  if (subject.is(Kind::undefined)) fail_undefined(subject);
  if (subject.is_integral()) return Value::integer(subject.integer());
  if (subject.is(Kind::floating)) {
    if (std::isinf(subject.floating())) fail("infinity cannot become an integer");
    return std::isnan(subject.floating()) ? fallback : truncated(subject.floating());
  }
  if (!subject.is(Kind::string)) return fallback;
  if (const auto integer = parse_integer(subject.text(), base)) return Value::integer(*integer);
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

Value round_filter(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("round", arguments, {"precision", "method"}, 0);
  const std::string method = values[1] == nullptr ? "common" : text_argument("round", *values[1]);
  if (method != "common" && method != "ceil" && method != "floor")
    fail("round: the method must be common, ceil or floor");
  if (method == "common" && values[0] != nullptr && values[0]->is(Kind::none))
    fail_unsupported("round with none as precision", "use | int");
  const Value precision = values[0] == nullptr ? Value::integer(0) : *values[0];
  if (subject.is(Kind::undefined)) fail_undefined(subject);
  if (!subject.is_number())
    fail(format("round needs a number, not {}", type_name(subject)), "convert it with | float");
  if (method == "common") {
    const int64_t digits = integer_argument("round", precision);
    if (subject.is_integral()) return Value::integer(rounded_integer(subject.integer(), digits));
    return Value::floating(rounded(subject.floating(), digits));
  }
  Heap& heap = interpreter.heap();
  const Value scale = arithmetic(heap, Operator::power, Value::integer(10), precision);
  Value scaled = arithmetic(heap, Operator::multiply, subject, scale);
  if (scaled.is(Kind::floating)) {
    if (!std::isfinite(scaled.floating())) fail("round: the number is not finite");
    scaled = truncated(method == "ceil" ? std::ceil(scaled.floating()) : std::floor(scaled.floating()));
  }
  return arithmetic(heap, Operator::divide, scaled, scale);
}

Value length_filter(Interpreter&, const Value& subject, Arguments& arguments) {
  bind("length", arguments, {}, 0);
  return Value::integer(length(subject));
}

Value attr_filter(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("attr", arguments, {"name"}, 1);
  Heap& heap = interpreter.heap();
  const std::string& name = text_argument("attr", *values[0]);
  // Unlike subject.name, this does not look for an item.
  if (subject.is(Kind::dict) && find_method(subject, name) == nullptr)
    return heap.undefined(format("a dict has no attribute {}", name));
  return get_attribute(heap, subject, name);
}

constexpr NamedFunction kFilters[] = {
    {"abs", abs_filter},   {"attr", attr_filter},       {"count", length_filter},
    {"d", default_filter}, {"default", default_filter}, {"float", float_filter},
    {"int", int_filter},   {"length", length_filter},   {"round", round_filter},
};

}  // namespace value_filter
}  // namespace

std::span<const NamedFunction> value_filters() {
  return value_filter::kFilters;
}

}  // namespace stepforge::jinja
