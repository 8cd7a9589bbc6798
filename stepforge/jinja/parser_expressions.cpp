// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/jinja/parser.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {

namespace {

/// A chain of operators is a deep tree; evaluation and destruction recurse.
constexpr int kMaxChain = 300;

bool is_constant_name(std::string_view name) {
  return name == "true" || name == "True" || name == "false" || name == "False" || name == "none" ||
         name == "None";
}

}  // namespace

Value text_constant(std::string text) {
  const int64_t length = count_code_points(text);
  return Value::object(Kind::string, std::make_shared<Text>(Text{std::move(text), length, false}));
}

ExpressionPtr Parser::make(Expression::Kind kind, int line) const {
  auto result = std::make_unique<Expression>();
  result->kind = kind;
  result->line = line;
  return result;
}

ExpressionPtr Parser::own(ExpressionPtr parent, ExpressionPtr child) const {
  if (child) parent->depth = std::max(parent->depth, child->depth + 1);
  parent->operands.push_back(std::move(child));
  return checked(std::move(parent));
}

ExpressionPtr Parser::checked(ExpressionPtr expression) const {
  if (expression->depth > kMaxChain) {
    throw SourceFault{TemplateError::Reason::limit, expression->line,
                      format("an expression has more than {} operators in a chain", kMaxChain),
                      "divide it with {% set %}"};
  }
  return expression;
}

ExpressionPtr Parser::parse_name_target(Expression::Use use) {
  const Token& token = expect_name();
  if (is_constant_name(token.text)) fail_syntax(token.line, format("cannot assign to {}", token.text));
  ExpressionPtr result = make(Expression::Kind::name, token.line);
  result->name = token.text;
  result->use = use;
  return result;
}

void Parser::make_target(Expression& target) const {
  if (target.kind == Expression::Kind::name) {
    if (target.name == "loop")
      fail_unsupported_at(target.line, "an assignment to the name loop", "use another name");
    target.use = Expression::Use::store;
  } else if (target.kind == Expression::Kind::tuple) {
    for (const ExpressionPtr& part : target.operands) make_target(*part);
  } else if (target.kind != Expression::Kind::namespace_attribute) {
    fail_syntax(target.line, "cannot assign to this expression",
                "assign to a name or an attribute of a namespace");
  }
}

ExpressionPtr Parser::parse_target(bool namespaces, std::string_view end) {
  const int line = current().line;
  ExpressionPtr tuple = make(Expression::Kind::tuple, line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->operands.empty()) expect_op(",");
    if (at_tuple_end(end)) break;
    tuple = own(std::move(tuple), parse_primary(namespaces));
    if (!current().is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && tuple->operands.empty()) unexpected("a name to assign to");
  ExpressionPtr result = is_tuple ? std::move(tuple) : std::move(tuple->operands[0]);
  make_target(*result);
  return result;
}

bool Parser::at_tuple_end(std::string_view end) const {
  const Token& token = current();
  return token.kind == Token::Kind::variable_end || token.kind == Token::Kind::block_end ||
         token.is_op(")") || (!end.empty() && token.is_name(end));
}

ExpressionPtr Parser::parse_tuple(bool conditional, std::string_view end, bool parentheses) {
  ExpressionPtr tuple = make(Expression::Kind::tuple, current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->operands.empty()) expect_op(",");
    if (at_tuple_end(end)) break;
    tuple = own(std::move(tuple), parse_expression(conditional));
    if (!current().is_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  if (!tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!parentheses) unexpected("an expression");
  return tuple;
}

ExpressionPtr Parser::parse_expression(bool conditional) {
  const Level level(*this);
  return conditional ? parse_conditional() : parse_or();
}

ExpressionPtr Parser::parse_conditional() {
  ExpressionPtr result = parse_or();
  while (current().is_name("if")) {
    ExpressionPtr node = make(Expression::Kind::conditional, next().line);
    node = own(std::move(node), parse_or());
    node = own(std::move(node), std::move(result));
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      const Level level(*this);
      otherwise = parse_conditional();
    }
    result = own(std::move(node), std::move(otherwise));
  }
  return result;
}

ExpressionPtr Parser::parse_or() {
  ExpressionPtr left = parse_and();
  while (current().is_name("or")) {
    ExpressionPtr node = own(make(Expression::Kind::logical_or, next().line), std::move(left));
    left = own(std::move(node), parse_and());
  }
  return left;
}

ExpressionPtr Parser::parse_and() {
  ExpressionPtr left = parse_not();
  while (current().is_name("and")) {
    ExpressionPtr node = own(make(Expression::Kind::logical_and, next().line), std::move(left));
    left = own(std::move(node), parse_not());
  }
  return left;
}

ExpressionPtr Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Level level(*this);
  ExpressionPtr node = make(Expression::Kind::logical_not, next().line);
  return own(std::move(node), parse_not());
}

ExpressionPtr Parser::parse_compare() {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::equal},      {"!=", Operator::not_equal}, {"<", Operator::less},
      {"<=", Operator::less_equal}, {">", Operator::greater},    {">=", Operator::greater_equal}};
  ExpressionPtr first = parse_sum();
  ExpressionPtr node;
  while (true) {
    const Operator* found = nullptr;
    static constexpr Operator kIn = Operator::in;
    static constexpr Operator kNotIn = Operator::not_in;
    for (const auto& [text, value] : kOperators) {
      if (current().is_op(text)) found = &value;
    }
    if (current().is_name("in")) found = &kIn;
    if (current().is_name("not") && look().is_name("in")) found = &kNotIn;
    if (found == nullptr) break;
    const int line = next().line;
    if (found == &kNotIn) next();
    if (!node) node = own(make(Expression::Kind::compare, line), std::move(first));
    node->operators.push_back(*found);
    node = own(std::move(node), parse_sum());
  }
  return node ? std::move(node) : std::move(first);
}

ExpressionPtr Parser::parse_arithmetic(NamedOperators operators, ExpressionPtr (Parser::*operand)()) {
  ExpressionPtr left = (this->*operand)();
  while (true) {
    const auto found = std::find_if(operators.begin(), operators.end(),
                                    [&](const auto& entry) { return current().is_op(entry.first); });
    if (current().is_op("**")) fail_unsupported_at(current().line, "the operator **", "multiply with *");
    if (found == operators.end()) return left;
    ExpressionPtr node = own(make(Expression::Kind::arithmetic, next().line), std::move(left));
    node->operators = {found->second};
    left = own(std::move(node), (this->*operand)());
  }
}

ExpressionPtr Parser::parse_sum() {
  static constexpr NamedOperator kOperators[] = {{"+", Operator::add}, {"-", Operator::subtract}};
  return parse_arithmetic(kOperators, &Parser::parse_concat);
}

ExpressionPtr Parser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!current().is_op("~")) return first;
  ExpressionPtr node = own(make(Expression::Kind::concat, current().line), std::move(first));
  while (skip_op("~")) node = own(std::move(node), parse_product());
  return node;
}

ExpressionPtr Parser::parse_product() {
  static constexpr NamedOperator kOperators[] = {{"*", Operator::multiply},
                                                 {"/", Operator::divide},
                                                 {"//", Operator::floor_divide},
                                                 {"%", Operator::modulo}};
  return parse_arithmetic(kOperators, &Parser::parse_filtered);
}

ExpressionPtr Parser::parse_filtered() {
  return parse_filters(parse_unary());
}

ExpressionPtr Parser::parse_unary() {
  if (!current().is_op("-") && !current().is_op("+")) return parse_postfix(parse_primary());
  const Level level(*this);
  const Token& token = next();
  ExpressionPtr node =
      make(token.text == "-" ? Expression::Kind::negate : Expression::Kind::plus, token.line);
  return parse_postfix(own(std::move(node), parse_unary()));
}

ExpressionPtr Parser::parse_name(bool namespaces) {
  const Token& token = next();
  ExpressionPtr result =
      make(is_constant_name(token.text) ? Expression::Kind::constant : Expression::Kind::name, token.line);
  if (result->kind == Expression::Kind::constant) {
    const char first = static_cast<char>(token.text[0] | 0x20);
    result->value = first == 'n' ? Value::none() : Value::boolean(first == 't');
    return result;
  }
  result->name = token.text;
  if (namespaces && skip_op(".")) {
    result->kind = Expression::Kind::namespace_attribute;
    result->attribute = expect_name().text;
  } else if (token.text == "self") {
    fail_unsupported_at(token.line, "the name self", "it belongs to template inheritance; use another name");
  }
  return result;
}

ExpressionPtr Parser::parse_primary(bool namespaces) {
  const Token& token = current();
  if (token.kind == Token::Kind::name) return parse_name(namespaces);
  if (token.is_op("[")) return parse_list();
  if (token.is_op("{")) return parse_dict();
  if (skip_op("(")) {
    ExpressionPtr result = parse_tuple(true, "", true);
    expect_op(")");
    return result;
  }
  ExpressionPtr result = make(Expression::Kind::constant, token.line);
  if (token.kind == Token::Kind::string) {
    std::string text;
    while (current().kind == Token::Kind::string) text += next().text;
    result->value = text_constant(std::move(text));
  } else if (token.kind == Token::Kind::integer) {
    result->value = Value::integer(next().integer);
  } else if (token.kind == Token::Kind::floating) {
    result->value = Value::floating(next().floating);
  } else {
    unexpected("an expression");
  }
  return result;
}

ExpressionPtr Parser::parse_list() {
  ExpressionPtr result = make(Expression::Kind::list, next().line);
  while (!current().is_op("]")) {
    if (!result->operands.empty()) expect_op(",");
    if (current().is_op("]")) break;
    result = own(std::move(result), parse_expression());
  }
  next();
  return result;
}

ExpressionPtr Parser::parse_dict() {
  ExpressionPtr result = make(Expression::Kind::dict, next().line);
  while (!current().is_op("}")) {
    if (!result->operands.empty()) expect_op(",");
    if (current().is_op("}")) break;
    result = own(std::move(result), parse_expression());
    expect_op(":");
    result = own(std::move(result), parse_expression());
  }
  next();
  return result;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (current().is_op("."))
      node = parse_attribute(std::move(node));
    else if (current().is_op("["))
      node = parse_subscript(std::move(node));
    else if (current().is_op("("))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

ExpressionPtr Parser::parse_filters(ExpressionPtr node) {
  while (true) {
    if (current().is_op("|"))
      node = parse_filter(std::move(node));
    else if (current().is_name("is"))
      node = parse_test(std::move(node));
    else if (current().is_op("("))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

/// At "|", or at the name of the filter of a filter block.
ExpressionPtr Parser::parse_filter(ExpressionPtr node) {
  skip_op("|");
  ExpressionPtr result = own(make(Expression::Kind::filter, current().line), std::move(node));
  result->name = expect_name().text;
  return current().is_op("(") ? with_arguments(std::move(result)) : std::move(result);
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExpressionPtr result = own(make(Expression::Kind::test, line), std::move(node));
  result->name = expect_name().text;
  const Token& token = current();
  const bool operand = token.kind == Token::Kind::name || token.kind == Token::Kind::string ||
                       token.kind == Token::Kind::integer || token.kind == Token::Kind::floating ||
                       token.is_op("[") || token.is_op("{");
  if (token.is_op("(")) {
    result = with_arguments(std::move(result));
  } else if (operand && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
    if (token.is_name("is")) fail_syntax(token.line, "two tests follow each other", "combine them with and");
    result->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  return negated ? own(make(Expression::Kind::logical_not, line), std::move(result)) : std::move(result);
}

ExpressionPtr Parser::parse_attribute(ExpressionPtr node) {
  const int line = next().line;
  const Token& token = next();
  if (token.kind == Token::Kind::name) {
    ExpressionPtr result = own(make(Expression::Kind::attribute, line), std::move(node));
    result->attribute = token.text;
    return result;
  }
  if (token.kind != Token::Kind::integer) fail_syntax(token.line, "expected a name or a number after '.'");
  ExpressionPtr index = make(Expression::Kind::constant, line);
  index->value = Value::integer(token.integer);
  return own(own(make(Expression::Kind::item, line), std::move(node)), std::move(index));
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  const int line = next().line;
  if (current().is_op(":")) return parse_slice(std::move(node), nullptr);
  ExpressionPtr key = parse_expression();
  if (current().is_op(":")) return parse_slice(std::move(node), std::move(key));
  if (current().is_op(","))
    fail_unsupported_at(line, "several keys between [ and ]", "use ((a, b)) for a tuple");
  expect_op("]");
  return own(own(make(Expression::Kind::item, line), std::move(node)), std::move(key));
}

/// At the first ":".
ExpressionPtr Parser::parse_slice(ExpressionPtr node, ExpressionPtr start) {
  const int line = next().line;
  ExpressionPtr stop;
  ExpressionPtr step;
  if (!current().is_op(":") && !current().is_op("]")) stop = parse_expression();
  if (skip_op(":") && !current().is_op("]")) step = parse_expression();
  if (current().is_op(",")) fail_unsupported_at(line, "several keys between [ and ]", "use one slice");
  expect_op("]");
  ExpressionPtr result = own(make(Expression::Kind::slice, line), std::move(node));
  result = own(std::move(result), std::move(start));
  result = own(std::move(result), std::move(stop));
  return own(std::move(result), std::move(step));
}

ExpressionPtr Parser::parse_call(ExpressionPtr node) {
  return with_arguments(own(make(Expression::Kind::call, current().line), std::move(node)));
}

ExpressionPtr Parser::with_arguments(ExpressionPtr node) {
  node->arguments = parse_arguments();
  const auto deepen = [&](const ExpressionPtr& argument) {
    if (argument) node->depth = std::max(node->depth, argument->depth + 1);
  };
  for (const ExpressionPtr& argument : node->arguments.positional) deepen(argument);
  for (const auto& [name, argument] : node->arguments.named) deepen(argument);
  deepen(node->arguments.star);
  deepen(node->arguments.star_star);
  return checked(std::move(node));
}

CallArguments Parser::parse_arguments() {
  const int line = expect_op("(").line;
  CallArguments result;
  const auto require = [line](bool rule) {
    if (!rule)
      fail_syntax(
          line,
          "arguments come in the order: positional, named, *values, **values, each of the last two once");
  };
  bool first = true;
  while (!current().is_op(")")) {
    if (!first) {
      expect_op(",");
      if (current().is_op(")")) break;
    }
    first = false;
    if (skip_op("*")) {
      require(!result.star && !result.star_star);
      result.star = parse_expression();
    } else if (skip_op("**")) {
      require(!result.star_star);
      result.star_star = parse_expression();
    } else if (current().kind == Token::Kind::name && look().is_op("=")) {
      require(!result.star_star);
      std::string name = next().text;
      next();
      for (const auto& [other, value] : result.named) {
        if (other == name) fail_syntax(line, format("the argument {} is given twice", name));
      }
      result.named.emplace_back(std::move(name), parse_expression());
    } else {
      require(!result.star && !result.star_star && result.named.empty());
      result.positional.push_back(parse_expression());
    }
  }
  next();
  return result;
}

}  // namespace stepforge::jinja
