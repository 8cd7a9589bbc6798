// SPDX-License-Identifier: Apache-2.0
// Two passes over each scope: Finder collects its names, Binder assigns slots and descends into inner scopes.
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/parser.h"
#include "stepforge/jinja/scopes.h"

namespace stepforge::jinja {
namespace {

template <typename Visit>
void each_argument(const CallArguments& arguments, Visit visit) {
  for (const ExpressionPtr& argument : arguments.positional) visit(*argument);
  for (const auto& [name, argument] : arguments.named) visit(*argument);
  if (arguments.star) visit(*arguments.star);
  if (arguments.star_star) visit(*arguments.star_star);
}

template <typename Visit>
void each_child(const Expression& expression, Visit visit) {
  for (const ExpressionPtr& operand : expression.operands) {
    if (operand) visit(*operand);
  }
  each_argument(expression.arguments, visit);
}

/// Which of the given names are read before they are set, at any depth.
class Undeclared {
 public:
  explicit Undeclared(std::set<std::string> names) : names_(std::move(names)) {}

  bool contains(const std::string& name) const { return found_.contains(name); }

  void visit(const Body& body) {
    for (const StatementPtr& statement : body) visit(*statement);
  }

 private:
  void visit(const Expression& expression) {
    if (expression.kind == Expression::Kind::name) {
      if (expression.use == Expression::Use::load && names_.contains(expression.name))
        found_.insert(expression.name);
      else
        names_.erase(expression.name);
    }
    each_child(expression, [this](const Expression& child) { visit(child); });
  }
  void visit(const ExpressionPtr& expression) {
    if (expression) visit(*expression);
  }
  void visit(const MacroBody& macro) {
    for (const ExpressionPtr& parameter : macro.parameters) visit(*parameter);
    for (const ExpressionPtr& value : macro.defaults) visit(*value);
    visit(macro.body);
  }
  void visit(const Statement& statement) {
    for (const Branch& branch : statement.branches) {
      visit(*branch.test);
      visit(branch.body);
    }
    if (statement.loop) {
      visit(*statement.loop->target);
      visit(*statement.loop->iterable);
      visit(statement.loop->body);
      visit(statement.loop->otherwise);
      visit(statement.loop->test);
    }
    if (statement.kind == Statement::Kind::call_block) visit(statement.value);
    if (statement.kind != Statement::Kind::macro) visit(statement.target);
    if (statement.kind == Statement::Kind::set) visit(statement.value);
    if (statement.macro) visit(*statement.macro);
    if (statement.kind == Statement::Kind::filter_block) {
      visit(statement.body);
      visit(statement.filter);
      return;
    }
    for (const ExpressionPtr& expression : statement.expressions) visit(*expression);
    visit(statement.filter);
    visit(statement.body);
  }

  std::set<std::string> names_;
  std::set<std::string> found_;
};

/// Collects the names that one scope uses, without inner scopes.
class Finder {
 public:
  explicit Finder(Symbols& symbols) : symbols_(&symbols) {}

  void visit(const Body& body) {
    for (const StatementPtr& statement : body) visit(*statement);
  }

  void visit(const Expression& expression, bool as_parameter = false) {
    if (expression.kind == Expression::Kind::name) {
      if (as_parameter || expression.use == Expression::Use::parameter)
        symbols_->declare_parameter(expression.name);
      else if (expression.use == Expression::Use::store)
        symbols_->store(expression.name);
      else
        symbols_->load(expression.name);
    } else if (expression.kind == Expression::Kind::namespace_attribute) {
      symbols_->load(expression.name);
    }
    each_child(expression, [&](const Expression& child) { visit(child, as_parameter); });
  }

 private:
  void visit(const Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::output:
        for (const ExpressionPtr& expression : statement.expressions) visit(*expression);
        break;
      case Statement::Kind::conditional:
        return visit_if(statement);
      case Statement::Kind::loop:
        return visit(*statement.loop->iterable);
      case Statement::Kind::set:
        visit(*statement.value);
        return visit(*statement.target);
      case Statement::Kind::set_block:
        return visit(*statement.target);
      case Statement::Kind::macro:
        return symbols_->store(statement.target->name);
      case Statement::Kind::call_block:
        return visit(*statement.value);
      case Statement::Kind::filter_block:
        return visit(*statement.filter);
      case Statement::Kind::generation:
      case Statement::Kind::break_loop:
      case Statement::Kind::continue_loop:
        break;
    }
  }

  void visit_if(const Statement& statement) {
    // Tests of later branches count as part of their branch.
    visit(*statement.branches[0].test);
    Symbols* const outer = symbols_;
    Symbols taken = *outer;
    Symbols later = *outer;
    Symbols otherwise = *outer;
    symbols_ = &taken;
    visit(statement.branches[0].body);
    for (size_t i = 1; i < statement.branches.size(); ++i) {
      symbols_ = &later;
      visit_branch(statement.branches[i]);
    }
    symbols_ = &otherwise;
    visit(statement.body);
    symbols_ = outer;
    symbols_->merge({taken, later, otherwise});
  }

  /// An elif is a nested if inside the current copy.
  void visit_branch(const Branch& branch) {
    visit(*branch.test);
    Symbols* const outer = symbols_;
    Symbols taken = *outer;
    symbols_ = &taken;
    visit(branch.body);
    symbols_ = outer;
    symbols_->merge({taken, *outer, *outer});
  }

  Symbols* symbols_;
};

/// The position of the binder.
struct Place {
  Symbols* symbols;
  bool lenient = false;  // inside an if: an unknown filter fails only when it is evaluated
  bool in_loop = false;  // break and continue are possible

  Place inner(Symbols& scope) const { return {&scope, false, in_loop}; }
  Place soft() const { return {symbols, true, in_loop}; }
};

class Binder {
 public:
  void bind(Program& program) {
    Symbols symbols(nullptr, &program.function, 0);
    Finder(symbols).visit(program.body);
    program.scope = symbols.scope();
    body(program.body, {&symbols});
  }

 private:
  void body(Body& body, const Place& place) {
    for (const StatementPtr& child : body) statement(*child, place);
  }

  static void bind_name(Expression& expression, const Place& place) {
    expression.slot = place.symbols->slot(expression.name, place.symbols->depth());
  }

  void expression(Expression& node, const Place& place) {
    if (node.kind == Expression::Kind::name || node.kind == Expression::Kind::namespace_attribute)
      bind_name(node, place);
    if (node.kind == Expression::Kind::filter)
      bind_function(node, place.lenient || is_refused_filter(node.name), find_filter(node.name), "filter");
    if (node.kind == Expression::Kind::test)
      bind_function(node, place.lenient || is_refused_test(node.name), find_test(node.name), "test");
    const Place inside = node.kind == Expression::Kind::conditional ? place.soft() : place;
    each_child(node, [&](const Expression& child) { expression(const_cast<Expression&>(child), inside); });
  }

  static void bind_function(Expression& node, bool lenient, ValueFunction function, std::string_view what) {
    node.function = function;
    if (function == nullptr && !lenient) {
      fail_syntax(node.line, format("there is no {} {}", what, quoted_for_message(node.name)),
                  "use one that Jinja2 has");
    }
  }

  void statement(Statement& node, const Place& place) {
    switch (node.kind) {
      case Statement::Kind::output:
        return all(node.expressions, place);
      case Statement::Kind::conditional:
        return conditional(node, place.soft());
      case Statement::Kind::loop:
        return loop(*node.loop, place);
      case Statement::Kind::set:
        expression(*node.target, place);
        return expression(*node.value, place);
      case Statement::Kind::set_block:
        return set_block(node, place);
      case Statement::Kind::macro:
        macro(*node.macro, place);
        node.slot = place.symbols->slot(node.target->name, place.symbols->depth());
        return;
      case Statement::Kind::call_block:
        macro(*node.macro, place);
        return expression(*node.value, place);
      case Statement::Kind::generation:
        return macro(*node.macro, place);
      case Statement::Kind::filter_block:
        return filter_block(node, place);
      case Statement::Kind::break_loop:
      case Statement::Kind::continue_loop:
        if (!place.in_loop) {
          fail_syntax(node.line,
                      "break or continue outside of a loop (a macro, call or generation block inside a loop "
                      "counts as outside)",
                      "move it into the loop");
        }
    }
  }

  void all(std::vector<ExpressionPtr>& expressions, const Place& place) {
    for (const ExpressionPtr& child : expressions) expression(*child, place);
  }

  void conditional(Statement& node, const Place& place) {
    for (Branch& branch : node.branches) {
      expression(*branch.test, place);
      body(branch.body, place);
    }
    body(node.body, place);
  }

  static ExpressionPtr copy_of(const Expression& target) {
    auto result = std::make_unique<Expression>();
    result->kind = target.kind;
    result->line = target.line;
    result->use = target.use;
    result->name = target.name;
    for (const ExpressionPtr& part : target.operands) result->operands.push_back(copy_of(*part));
    return result;
  }

  void loop(ForLoop& node, const Place& place) {
    const Symbols& outer = *place.symbols;
    Function* const owner = outer.owner();
    const int depth = outer.depth();
    Symbols inside(&outer, owner, depth);
    Undeclared undeclared({"loop"});
    undeclared.visit(node.body);
    if (undeclared.contains("loop")) node.loop_slot = inside.declare_parameter("loop");
    Finder finder(inside);
    finder.visit(*node.target, true);
    finder.visit(node.body);
    node.scope = inside.scope();

    Place in_body = place.inner(inside);
    in_body.in_loop = true;
    expression(*node.target, in_body);
    if (node.test) loop_test(node, outer, owner, depth);
    expression(*node.iterable, place);
    body(node.body, in_body);

    Symbols otherwise(&outer, owner, depth);
    Finder(otherwise).visit(node.otherwise);
    node.else_scope = otherwise.scope();
    Place in_else = place.inner(otherwise);
    in_else.in_loop = place.in_loop;
    body(node.otherwise, in_else);
  }

  void loop_test(ForLoop& node, const Symbols& outer, Function* owner, int depth) {
    Symbols symbols(&outer, owner, depth);
    node.test_target = copy_of(*node.target);
    Finder finder(symbols);
    finder.visit(*node.test_target, true);
    finder.visit(*node.test);
    node.test_scope = symbols.scope();
    const Place place{&symbols};
    expression(*node.test_target, place);
    expression(*node.test, place);
  }

  void set_block(Statement& node, const Place& place) {
    Symbols symbols(place.symbols, place.symbols->owner(), place.symbols->depth());
    Finder(symbols).visit(node.body);
    // The filter is part of the block's scope, which knows the names of its arguments only if the body or an outer scope does.
    if (node.filter) Finder(symbols).visit(*node.filter);
    node.scope = symbols.scope();
    body(node.body, place.inner(symbols));
    if (node.filter) expression(*node.filter, place.inner(symbols));
    expression(*node.target, place);
  }

  void filter_block(Statement& node, const Place& place) {
    Symbols symbols(place.symbols, place.symbols->owner(), place.symbols->depth());
    Finder finder(symbols);
    finder.visit(node.body);
    finder.visit(*node.filter);
    node.scope = symbols.scope();
    body(node.body, place.inner(symbols));
    expression(*node.filter, place.inner(symbols));
  }

  void macro(MacroBody& node, const Place& place) {
    Symbols symbols(place.symbols, &node.function, place.symbols->depth() + 1);
    Finder finder(symbols);
    for (const ExpressionPtr& parameter : node.parameters) finder.visit(*parameter);
    for (const ExpressionPtr& value : node.defaults) finder.visit(*value);
    Undeclared undeclared({"caller", "kwargs", "varargs"});
    undeclared.visit(node.body);
    if (undeclared.contains("caller")) node.caller = symbols.declare_parameter("caller");
    for (const std::string name : {"kwargs", "varargs"}) {
      const bool parameter = std::any_of(node.parameters.begin(), node.parameters.end(),
                                         [&](const ExpressionPtr& p) { return p->name == name; });
      if (undeclared.contains(name) && !parameter)
        fail_unsupported_at(node.line, format("the name {} in a macro", name), "name the parameters");
    }
    finder.visit(node.body);
    node.scope = symbols.scope();
    const Place inside{&symbols};
    all(node.parameters, inside);
    all(node.defaults, inside);
    body(node.body, inside);
  }
};

}  // namespace

void bind_names(Program& program) {
  Binder().bind(program);
}

}  // namespace stepforge::jinja
