// SPDX-License-Identifier: Apache-2.0
// The tests after `is`.
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {
namespace value_test {

template <Kind kind>
bool is_a(const Value& value) {
  return value.is(kind);
}
bool is_defined(const Value& value) {
  return !value.is(Kind::undefined);
}
template <bool wanted>
bool is_truth(const Value& value) {
  return value.is(Kind::boolean) && value.boolean() == wanted;
}
bool is_number(const Value& value) {
  return value.is_number();
}
/// Has a length and items by key.
bool is_sequence(const Value& value) {
  return value.is(Kind::string) || value.is_sequence() || value.is(Kind::dict) || value.is(Kind::range) ||
         value.is(Kind::undefined);
}
template <bool (*holds)(const Value&)>
Value test(Interpreter&, const Value& subject, Arguments& arguments) {
  bind("the test", arguments, {}, 0);
  return Value::boolean(holds(subject));
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

constexpr NamedFunction kTests[] = {
    {"defined", test<is_defined>},
    {"undefined", test<is_a<Kind::undefined>>},
    {"none", test<is_a<Kind::none>>},
    {"boolean", test<is_a<Kind::boolean>>},
    {"false", test<is_truth<false>>},
    {"true", test<is_truth<true>>},
    {"integer", test<is_a<Kind::integer>>},
    {"float", test<is_a<Kind::floating>>},
    {"number", test<is_number>},
    {"string", test<is_a<Kind::string>>},
    {"mapping", test<is_a<Kind::dict>>},
    {"sequence", test<is_sequence>},
    {"iterable", test<is_iterable>},
    {"escaped", test<is_safe>},
    {"in", is_in},
    {"==", comparison<Operator::equal>},
    {"eq", comparison<Operator::equal>},
    {"equalto", comparison<Operator::equal>},
    {"!=", comparison<Operator::not_equal>},
    {"ne", comparison<Operator::not_equal>},
    {">", comparison<Operator::greater>},
    {"gt", comparison<Operator::greater>},
    {"greaterthan", comparison<Operator::greater>},
    {">=", comparison<Operator::greater_equal>},
    {"ge", comparison<Operator::greater_equal>},
    {"<", comparison<Operator::less>},
    {"lt", comparison<Operator::less>},
    {"lessthan", comparison<Operator::less>},
    {"<=", comparison<Operator::less_equal>},
    {"le", comparison<Operator::less_equal>},
};

}  // namespace value_test
}  // namespace

std::span<const NamedFunction> value_tests() {
  return value_test::kTests;
}

}  // namespace stepforge::jinja
