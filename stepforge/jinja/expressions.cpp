// SPDX-License-Identifier: Apache-2.0

#include "stepforge/base/format.h"
#include "stepforge/jinja/attributes.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {

Value& Interpreter::slot(const Slot& slot) {
  Frame* frame = frame_.get();
  for (int i = 0; i < slot.hops; ++i) frame = frame->outer.get();
  return frame->slots[static_cast<size_t>(slot.index)];
}

Value Interpreter::evaluate_name(const Expression& expression) {
  const Value& value = slot(expression.slot);
  return value.is(Kind::missing) ? heap_.undefined(format("{} is undefined", expression.name)) : value;
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExpressionPtr>& expressions) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) values.push_back(evaluate(*expression));
  return values;
}

Value Interpreter::evaluate(const Expression& expression) {
  const Budget::Level level(heap_.budget());
  heap_.budget().step();
  line_ = expression.line;
  const auto operand = [&](size_t i) { return evaluate(*expression.operands[i]); };
  switch (expression.kind) {
    case Expression::Kind::constant:
      return expression.value;
    case Expression::Kind::name:
      return evaluate_name(expression);
    case Expression::Kind::namespace_attribute:
      return Value::none();  // only a target
    case Expression::Kind::tuple:
      return heap_.tuple(evaluate_all(expression.operands));
    case Expression::Kind::list:
      return heap_.list(evaluate_all(expression.operands));
    case Expression::Kind::dict:
      return evaluate_dict(expression);
    case Expression::Kind::negate:
      return negated(operand(0));
    case Expression::Kind::plus:
      return unchanged(operand(0));
    case Expression::Kind::logical_not:
      return Value::boolean(!truth(operand(0)));
    case Expression::Kind::logical_and: {
      Value left = operand(0);
      return truth(left) ? operand(1) : left;
    }
    case Expression::Kind::logical_or: {
      Value left = operand(0);
      return truth(left) ? left : operand(1);
    }
    case Expression::Kind::arithmetic: {
      const Value left = operand(0);
      return arithmetic(heap_, expression.operators[0], left, operand(1));
    }
    case Expression::Kind::compare:
      return evaluate_compare(expression);
    case Expression::Kind::concat:
      return evaluate_concat(expression);
    case Expression::Kind::conditional:
      return evaluate_conditional(expression);
    case Expression::Kind::attribute:
      return get_attribute(heap_, operand(0), expression.attribute);
    case Expression::Kind::item: {
      const Value object = operand(0);
      return get_item(heap_, object, operand(1));
    }
    case Expression::Kind::slice:
      return evaluate_slice(expression);
    case Expression::Kind::call:
      return evaluate_call(expression, nullptr);
    case Expression::Kind::filter:
      return evaluate_filter(expression, nullptr);
    case Expression::Kind::test:
      return evaluate_test(expression);
  }
  return Value::none();
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    Value key = evaluate(*expression.operands[i]);
    items.emplace_back(std::move(key), evaluate(*expression.operands[i + 1]));
  }
  return heap_.dict(std::move(items));
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1]);
    if (!compare(heap_, expression.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_concat(const Expression& expression) {
  std::string result;
  const std::vector<Value> parts = evaluate_all(expression.operands);
  for (const Value& part : parts) {
    heap_.budget().step();
    if (part.is(Kind::string)) heap_.budget().allocate(part.text().size());
    result += str(heap_, part);
  }
  return heap_.text(std::move(result));
}

Value Interpreter::evaluate_conditional(const Expression& expression) {
  if (truth(evaluate(*expression.operands[0]))) return evaluate(*expression.operands[1]);
  if (expression.operands[2]) return evaluate(*expression.operands[2]);
  return heap_.undefined(
      format("the inline if of line {} has no else, and its condition is false", expression.line));
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const Value object = evaluate(*expression.operands[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    bounds[i] = expression.operands[i + 1] ? evaluate(*expression.operands[i + 1]) : Value::none();
  }
  return get_slice(heap_, object, bounds[0], bounds[1], bounds[2]);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments result;
  result.positional = evaluate_all(arguments.positional);
  for (const auto& [name, value] : arguments.named) result.named.emplace_back(name, evaluate(*value));
  if (arguments.star) {
    for (Value& value : all_of(heap_, evaluate(*arguments.star)))
      result.positional.push_back(std::move(value));
  }
  if (!arguments.star_star) return result;
  const Value named = evaluate(*arguments.star_star);
  if (named.is(Kind::undefined)) fail_undefined(named);
  if (!named.is(Kind::dict)) fail(format("** needs a dict, not {}", type_name(named)));
  for (const auto& [key, value] : named.dict().items) {
    heap_.budget().step(static_cast<int64_t>(1 + result.named.size() / 4));
    if (!key.is(Kind::string)) fail("the keys of ** must be strings");
    for (const auto& [name, other] : result.named) {
      if (name == key.text()) fail(format("the argument {} is given twice", name));
    }
    result.named.emplace_back(key.text(), value);
  }
  return result;
}

Value Interpreter::evaluate_call(const Expression& expression, const Value* caller) {
  const Value callee = evaluate(*expression.operands[0]);
  Arguments arguments = evaluate_arguments(expression.arguments);
  if (caller != nullptr) {
    for (const auto& [name, value] : arguments.named) {
      if (name == "caller") fail("a call block passes the argument caller itself", "do not pass it");
    }
    arguments.named.emplace_back("caller", *caller);
  }
  line_ = expression.line;
  return call(callee, arguments);
}

Value Interpreter::evaluate_filter(const Expression& expression, const Value* subject) {
  Value value;
  // The filter nearest to the block has no operand: it gets the block's text.
  if (!expression.operands[0])
    value = *subject;
  else if (expression.operands[0]->kind == Expression::Kind::filter)
    value = evaluate_filter(*expression.operands[0], subject);
  else
    value = evaluate(*expression.operands[0]);
  const Budget::Level level(heap_.budget());
  heap_.budget().step();
  line_ = expression.line;
  const ValueFunction filter = expression.function ? expression.function : require_filter(expression.name);
  Arguments arguments = evaluate_arguments(expression.arguments);
  return filter(*this, value, arguments);
}

Value Interpreter::evaluate_test(const Expression& expression) {
  const Value value = evaluate(*expression.operands[0]);
  line_ = expression.line;
  const ValueFunction test = expression.function ? expression.function : require_test(expression.name);
  Arguments arguments = evaluate_arguments(expression.arguments);
  return test(*this, value, arguments);
}

}  // namespace stepforge::jinja
