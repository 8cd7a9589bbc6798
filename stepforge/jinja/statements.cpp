// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/scoped_state.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {

void Interpreter::write(std::string_view text) {
  heap_.budget().allocate(text.size());
  out_->append(text);
  if (out_ == &root_) heap_.budget().check_output(root_.size());
}

void Interpreter::write(const Value& value) {
  if (value.is(Kind::string)) return write(std::string_view(value.text()));
  write(std::string_view(str(heap_, value)));
}

void Interpreter::write_text(const Value& value, std::string_view block) {
  if (!value.is(Kind::string)) {
    fail(format("a {} block makes {}, not a string", block, type_name(value)), "add | string");
  }
  write(value);
}

Value Interpreter::variable(const std::string& name) {
  const auto found = variables_.find(name);
  return found == variables_.end() ? global_function(name) : found->second;
}

void Interpreter::enter(const Scope& scope) {
  for (const ScopeLoad& load : scope.loads) {
    heap_.budget().step();
    Value& target = frame_->slots[static_cast<size_t>(load.index)];
    switch (load.from) {
      case ScopeLoad::From::outer:
        target = slot(load.outer);
        break;
      case ScopeLoad::From::variable:
        target = variable(load.name);
        break;
      case ScopeLoad::From::nothing:
        target = Value();
        break;
    }
  }
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const StatementPtr& statement : body) {
    const Flow flow = execute(*statement);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  const Budget::Level level(heap_.budget());
  heap_.budget().step();
  line_ = statement.line;
  switch (statement.kind) {
    case Statement::Kind::output:
      output(statement);
      break;
    case Statement::Kind::conditional:
      return conditional(statement);
    case Statement::Kind::loop:
      return loop(*statement.loop);
    case Statement::Kind::set:
      set(statement);
      break;
    case Statement::Kind::set_block:
      return set_block(statement);
    case Statement::Kind::macro:
      define_macro(statement);
      break;
    case Statement::Kind::call_block:
      call_block(statement);
      break;
    case Statement::Kind::filter_block:
      return filter_block(statement);
    case Statement::Kind::generation:
      generation(statement);
      break;
    case Statement::Kind::break_loop:
      return Flow::break_loop;
    case Statement::Kind::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::normal;
}

void Interpreter::output(const Statement& statement) {
  for (const ExpressionPtr& expression : statement.expressions) {
    if (expression->kind == Expression::Kind::constant)
      write(expression->value);
    else
      write(evaluate(*expression));
  }
}

Interpreter::Flow Interpreter::conditional(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (truth(evaluate(*branch.test))) return execute(branch.body);
  }
  return execute(statement.body);
}

/// The values that pass the loop's `if`, lazily.
Value Interpreter::tested(const ForLoop& node, const Value& iterable) {
  Next source = iterate(heap_, iterable);
  FramePtr frame = frame_;
  bool begun = false;
  return heap_.generator(
      [this, &node, source = std::move(source), frame = std::move(frame), begun](Value& out) mutable {
        const FramePtr before = std::exchange(frame_, frame);
        if (!std::exchange(begun, true)) enter(node.test_scope);
        bool found = false;
        for (Value item; !found && source(item);) {
          heap_.budget().step();
          assign(*node.test_target, item);
          found = truth(evaluate(*node.test));
          if (found) out = evaluate(*node.test_target);
        }
        frame_ = before;
        return found;
      },
      depth_of(iterable));
}

Interpreter::Flow Interpreter::loop(const ForLoop& node) {
  const Value iterable = evaluate(*node.iterable);
  const Value values = node.test ? tested(node, iterable) : iterable;
  Loop* loop = nullptr;
  Next next;
  if (node.loop_slot >= 0) {
    loop = &heap_.keep(Loop(heap_, values));
    next = [loop](Value& out) {
      if (!loop->advance()) return false;
      out = loop->current;
      return true;
    };
  } else {
    next = iterate(heap_, values);
  }
  bool completed = false;  // a body ran to its end: as in Jinja2, break and continue do not count
  for (Value item; next(item);) {
    heap_.budget().step();
    if (loop != nullptr)
      frame_->slots[static_cast<size_t>(node.loop_slot)] = Value::pointer(Kind::loop, loop);
    assign(*node.target, item);
    enter(node.scope);
    const Flow flow = execute(node.body);
    if (flow == Flow::break_loop) break;
    completed = completed || flow == Flow::normal;
  }
  if (!node.has_else || completed) return Flow::normal;
  enter(node.else_scope);
  return execute(node.otherwise);
}

void Interpreter::check_namespaces(const Expression& target) {
  if (target.kind == Expression::Kind::namespace_attribute && !slot(target.slot).is(Kind::name_space)) {
    fail(format("cannot set the attribute {} of {}, which is not a namespace", target.attribute, target.name),
         "create it with namespace()");
  }
  for (const ExpressionPtr& part : target.operands) check_namespaces(*part);
}

void Interpreter::assign(const Expression& target, const Value& value) {
  if (target.kind == Expression::Kind::name) {
    slot(target.slot) = value;
    return;
  }
  if (target.kind == Expression::Kind::namespace_attribute) {
    return slot(target.slot).kept<Namespace>().set(heap_, target.attribute, value);
  }
  const std::vector<Value> items = all_of(heap_, value);
  if (items.size() != target.operands.size()) {
    fail(format("{} names for {} values", target.operands.size(), items.size()),
         "unpack as many names as there are values");
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.operands[i], items[i]);
}

void Interpreter::set(const Statement& statement) {
  check_namespaces(*statement.target);
  assign(*statement.target, evaluate(*statement.value));
}

Interpreter::Flow Interpreter::set_block(const Statement& statement) {
  check_namespaces(*statement.target);
  Buffer buffer(*this);
  enter(statement.scope);
  const Flow flow = execute(statement.body);
  if (flow != Flow::normal) return flow;
  Value value = heap_.text(std::move(buffer.text));
  if (statement.filter) value = evaluate_filter(*statement.filter, &value);
  assign(*statement.target, value);
  return flow;
}

Interpreter::Flow Interpreter::filter_block(const Statement& statement) {
  Value value;
  {
    Buffer buffer(*this);
    enter(statement.scope);
    const Flow flow = execute(statement.body);
    if (flow != Flow::normal) return flow;
    value = heap_.text(std::move(buffer.text));
  }
  write_text(evaluate_filter(*statement.filter, &value), "filter");
  return Flow::normal;
}

void Interpreter::define_macro(const Statement& statement) {
  slot(statement.slot) = Value::pointer(Kind::macro, &heap_.keep(Macro{statement.macro.get(), frame_}));
}

void Interpreter::call_block(const Statement& statement) {
  const Value caller = Value::pointer(Kind::macro, &heap_.keep(Macro{statement.macro.get(), frame_}));
  write_text(evaluate_call(*statement.value, &caller), "call");
}

void Interpreter::generation(const Statement& statement) {
  Arguments none;
  const Value text = call_macro(Macro{statement.macro.get(), frame_}, none);
  root_length_ += count_code_points(std::string_view(root_).substr(root_counted_));
  root_counted_ = root_.size();
  heap_.budget().allocate(sizeof(Span));
  generation_.push_back({root_length_, root_length_ + text.string().length});
  write(text);
}

}  // namespace stepforge::jinja
