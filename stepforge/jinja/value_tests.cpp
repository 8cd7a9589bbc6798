// SPDX-License-Identifier: Apache-2.0
// The tests after `is`.
#include <algorithm>

#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {
namespace value_test {

bool is_defined(const Value& value) {
  return !value.is(Kind::undefined);
}
bool is_undefined(const Value& value) {
  return value.is(Kind::undefined);
}
bool is_none(const Value& value) {
  return value.is(Kind::none);
}
bool is_boolean(const Value& value) {
  return value.is(Kind::boolean);
}
bool is_true(const Value& value) {
  return value.is(Kind::boolean) && value.boolean();
}
bool is_false(const Value& value) {
  return value.is(Kind::boolean) && !value.boolean();
}
bool is_integer(const Value& value) {
  return value.is(Kind::integer);
}
bool is_float(const Value& value) {
  return value.is(Kind::floating);
}
bool is_number(const Value& value) {
  return value.is_number();
}
bool is_string(const Value& value) {
  return value.is(Kind::string);
}
bool is_mapping(const Value& value) {
  return value.is(Kind::dict);
}
/// Has a length and items by key.
bool is_sequence(const Value& value) {
  return value.is(Kind::string) || value.is_sequence() || value.is(Kind::dict) || value.is(Kind::range) ||
         value.is(Kind::undefined);
}
bool is_callable(const Value& value) {
  return value.is(Kind::macro) || value.is(Kind::function) || value.is(Kind::method) ||
         value.is(Kind::loop) || value.is(Kind::joiner) || value.is(Kind::undefined);
}
bool is_escaped(const Value& value) {
  return is_safe(value);
}

template <bool (*holds)(const Value&)>
Value test(Interpreter&, const Value& subject, Arguments& arguments) {
  bind("the test", arguments, {}, 0);
  return Value::boolean(holds(subject));
}

template <int64_t remainder>
Value parity(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("the test", arguments, {}, 0);
  Heap& heap = interpreter.heap();
  const Value rest = arithmetic(heap, Operator::modulo, subject, Value::integer(2));
  return Value::boolean(equal(heap.budget(), rest, Value::integer(remainder)));
}

Value divisible_by(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("divisibleby", arguments, {"num"}, 1);
  Heap& heap = interpreter.heap();
  const Value rest = arithmetic(heap, Operator::modulo, subject, *values[0]);
  return Value::boolean(equal(heap.budget(), rest, Value::integer(0)));
}

template <Operator op>
Value comparison(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("the test", arguments, {""}, 1);
  return Value::boolean(compare(interpreter.heap(), op, subject, *values[0]));
}

Value is_in(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("in", arguments, {"seq"}, 1);
  return Value::boolean(contains(interpreter.heap(), *values[0], subject));
}

Value same_as(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("sameas", arguments, {"other"}, 1);
  const Value& other = *values[0];
  if (subject.kind() != other.kind()) return Value::boolean(false);
  const bool by_value = subject.is_number() || subject.is(Kind::none) || subject.is(Kind::string);
  return Value::boolean(by_value ? equal(interpreter.heap().budget(), subject, other)
                                 : subject.identity() == other.identity());
}

/// islower or isupper of the value's text.
template <bool upper>
Value has_case(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  Heap& heap = interpreter.heap();
  const Value text = heap.text(str(heap, subject));
  return find_method(text, upper ? "isupper" : "islower")->function(interpreter, text, arguments);
}

template <ValueFunction (*find)(std::string_view)>
Value is_known(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("the test", arguments, {}, 0);
  hash_of(interpreter.heap().budget(), subject);
  return Value::boolean(subject.is(Kind::string) && find(subject.text()) != nullptr);
}

constexpr NamedFunction kTests[] = {
    {"odd", parity<1>},
    {"even", parity<0>},
    {"divisibleby", divisible_by},
    {"defined", test<is_defined>},
    {"undefined", test<is_undefined>},
    {"filter", is_known<find_filter>},
    {"test", is_known<find_test>},
    {"none", test<is_none>},
    {"boolean", test<is_boolean>},
    {"false", test<is_false>},
    {"true", test<is_true>},
    {"integer", test<is_integer>},
    {"float", test<is_float>},
    {"lower", has_case<false>},
    {"upper", has_case<true>},
    {"string", test<is_string>},
    {"mapping", test<is_mapping>},
    {"number", test<is_number>},
    {"sequence", test<is_sequence>},
    {"iterable", test<is_iterable>},
    {"callable", test<is_callable>},
    {"sameas", same_as},
    {"escaped", test<is_escaped>},
    {"in", is_in},
    {"==", comparison<Operator::equal>},
    {"eq", comparison<Operator::equal>},
    {"equalto", comparison<Operator::equal>},
    {"!=", comparison<Operator::not_equal>},
    {"ne", comparison<Operator::not_equal>},
    {">", comparison<Operator::greater>},
    {"gt", comparison<Operator::greater>},
    {"greaterthan", comparison<Operator::greater>},
    {"ge", comparison<Operator::greater_equal>},
    {">=", comparison<Operator::greater_equal>},
    {"<", comparison<Operator::less>},
    {"lt", comparison<Operator::less>},
    {"lessthan", comparison<Operator::less>},
    {"<=", comparison<Operator::less_equal>},
    {"le", comparison<Operator::less_equal>},
};

}  // namespace value_test
}  // namespace

ValueFunction find_test(std::string_view name) {
  const auto found = std::find_if(std::begin(value_test::kTests), std::end(value_test::kTests),
                                  [name](const NamedFunction& entry) { return entry.first == name; });
  return found == std::end(value_test::kTests) ? nullptr : found->second;
}

}  // namespace stepforge::jinja
