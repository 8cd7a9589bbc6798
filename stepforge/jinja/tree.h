// SPDX-License-Identifier: Apache-2.0
// The parsed template. Names are bound to slots of the frame of a function (the template, a macro, ...) by scopes.cpp.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// A variable: slot `index` of the frame `hops` functions further out.
struct Slot {
  int hops = 0;
  int index = -1;
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;       // *values
  ExpressionPtr star_star;  // **values
};

enum class Operator : uint8_t {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in,
};

struct Expression {
  enum class Kind : uint8_t {
    constant,             // value
    name,                 // name, slot
    namespace_attribute,  // name, slot, attribute; only as a target
    tuple,                // operands
    list,                 // operands
    dict,                 // operands: key, value, key, value, ...
    negate,               // operands[0]
    plus,                 // operands[0]
    logical_not,          // operands[0]
    logical_and,          // operands[0], [1]
    logical_or,           // operands[0], [1]
    arithmetic,           // operators[0]; operands[0], [1]
    compare,              // operands[i] operators[i] operands[i + 1]
    concat,               // operands
    conditional,          // operands: test, then, else (may be null)
    attribute,            // operands[0], attribute
    item,                 // operands[0], [1]
    slice,                // operands: object, start, stop, step (may be null)
    call,                 // operands[0], arguments
    filter,               // operands[0] (null in a filter block), name, arguments
    test,                 // operands[0], name, arguments
  };
  enum class Use : uint8_t { load, store, parameter };

  Kind kind = Kind{};
  int line = 0;
  int depth = 1;
  Use use = Use::load;
  std::string name;
  std::string attribute;
  Value value;
  Slot slot;
  std::vector<Operator> operators;
  std::vector<ExpressionPtr> operands;
  CallArguments arguments;
  ValueFunction function = nullptr;  // of a filter or test; null: unknown or refused, an error when evaluated
};

/// Initializes a slot when a scope is entered: from an outer scope, from a variable of the render, or with no value.
struct ScopeLoad {
  enum class From : uint8_t { outer, variable, nothing } from;
  int index;
  Slot outer;
  std::string name;
};

struct Scope {
  std::vector<ScopeLoad> loads;
};

/// The size of a frame.
struct Function {
  int slots = 0;
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

/// A macro, a call block's body or a generation block.
struct MacroBody {
  std::string name;  // empty: a block
  int line = 0;
  std::vector<ExpressionPtr> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  Function function;
  Scope scope;
  int caller = -1;  // slot, if the body mentions it
};

struct Branch {
  ExpressionPtr test;
  Body body;
};

struct ForLoop {
  ExpressionPtr target;
  ExpressionPtr iterable;
  ExpressionPtr test;         // may be null
  ExpressionPtr test_target;  // the target in the scope of the test
  Body body;
  Body otherwise;
  bool has_else = false;
  int loop_slot = -1;  // of `loop`, if the body mentions it
  Scope scope;
  Scope test_scope;
  Scope else_scope;
};

struct Statement {
  enum class Kind : uint8_t {
    output,        // expressions
    conditional,   // branches, body
    loop,          // loop
    set,           // target, value
    set_block,     // target, filter (may be null), body, scope
    macro,         // macro, slot
    call_block,    // macro, value: the call
    filter_block,  // filter, body, scope
    generation,    // macro
    break_loop,
    continue_loop,
  };
  Kind kind = Kind{};
  int line = 0;
  std::vector<ExpressionPtr> expressions;
  ExpressionPtr target;
  ExpressionPtr value;
  ExpressionPtr filter;
  std::vector<Branch> branches;
  Body body;  // of a conditional: the else branch
  Scope scope;
  Slot slot;
  std::unique_ptr<ForLoop> loop;
  std::unique_ptr<MacroBody> macro;
};

/// A whole template.
struct Program {
  std::string name;
  Body body;
  Function function;
  Scope scope;
};

}  // namespace stepforge::jinja
