// SPDX-License-Identifier: Apache-2.0
// Tokens to a tree.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/jinja/lexer.h"
#include "stepforge/jinja/template.h"
#include "stepforge/jinja/tree.h"

namespace stepforge::jinja {

/// A string of the template itself, which no budget counts.
Value text_constant(std::string text);

/// A syntax error without the name of the template, which Template::parse adds. Internal to this folder.
struct SourceFault {
  TemplateError::Reason reason;
  int line;
  std::string message;
  std::string remedy;
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  /// The statements of the whole template; names are not bound yet. Throws SourceFault.
  Body parse();

 private:
  using Ends = std::vector<std::string_view>;
  using NamedOperator = std::pair<std::string_view, Operator>;
  using NamedOperators = std::span<const NamedOperator>;

  // parser.cpp
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next();
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  const Token& expect_op(std::string_view op);
  const Token& expect_name();
  void expect_block_end();
  [[noreturn]] void unexpected(std::string_view wanted) const;

  Body statements_until(const Ends& ends);
  Body subparse(const Ends& ends, bool nested);
  StatementPtr statement(Statement::Kind kind, int line) const;
  StatementPtr parse_statement();
  [[noreturn]] void refuse_tag() const;
  StatementPtr parse_if();
  StatementPtr parse_for();
  StatementPtr parse_set();
  StatementPtr parse_macro();
  StatementPtr parse_call_block();
  StatementPtr parse_filter_block();
  StatementPtr parse_generation();
  void parse_signature(MacroBody& macro);

  // parser_expressions.cpp
  ExpressionPtr make(Expression::Kind kind, int line) const;
  ExpressionPtr own(ExpressionPtr parent, ExpressionPtr child) const;
  ExpressionPtr checked(ExpressionPtr expression) const;
  ExpressionPtr parse_target(bool namespaces, std::string_view end = "");
  ExpressionPtr parse_name_target(Expression::Use use);
  void make_target(Expression& target) const;
  ExpressionPtr parse_tuple(bool conditional, std::string_view end = "", bool parentheses = false);
  bool at_tuple_end(std::string_view end) const;
  ExpressionPtr parse_expression(bool conditional = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_arithmetic(NamedOperators operators, ExpressionPtr (Parser::*operand)());
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_filtered();
  ExpressionPtr parse_unary();
  ExpressionPtr parse_primary(bool namespaces = false);
  ExpressionPtr parse_name(bool namespaces);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters(ExpressionPtr node);
  ExpressionPtr parse_filter(ExpressionPtr node);
  ExpressionPtr parse_test(ExpressionPtr node);
  ExpressionPtr parse_attribute(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_slice(ExpressionPtr node, ExpressionPtr start);
  ExpressionPtr parse_call(ExpressionPtr node);
  ExpressionPtr with_arguments(ExpressionPtr node);
  CallArguments parse_arguments();

  /// RAII: one level of nesting in the source.
  class Level {
   public:
    explicit Level(Parser& parser);
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace stepforge::jinja
