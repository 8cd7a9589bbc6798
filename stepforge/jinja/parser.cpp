// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/parser.h"

#include <algorithm>
#include <array>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge::jinja {

namespace {
constexpr int kMaxNesting = 100;
}

Parser::Level::Level(Parser& parser) : parser_(parser) {
  if (++parser.depth_ > kMaxNesting) {
    --parser.depth_;
    throw SourceFault{TemplateError::Reason::limit, parser.current().line,
                      format("blocks or brackets are nested more than {} levels deep", kMaxNesting),
                      "simplify the template"};
  }
}

const Token& Parser::next() {
  const Token& token = tokens_[at_];
  if (token.kind != Token::Kind::end) ++at_;
  return token;
}

bool Parser::skip_op(std::string_view op) {
  if (!current().is_op(op)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

void Parser::unexpected(std::string_view wanted) const {
  fail_syntax(current().line,
              format("expected {}, found {}", wanted, quoted_for_message(described(current()))));
}

const Token& Parser::expect_op(std::string_view op) {
  if (!current().is_op(op)) unexpected(format("'{}'", op));
  return next();
}

const Token& Parser::expect_name() {
  if (current().kind != Token::Kind::name) unexpected("a name");
  return next();
}

void Parser::expect_block_end() {
  if (current().kind != Token::Kind::block_end) unexpected("'%}'");
  next();
}

Body Parser::parse() {
  return subparse({}, false);
}

StatementPtr Parser::statement(Statement::Kind kind, int line) const {
  auto result = std::make_unique<Statement>();
  result->kind = kind;
  result->line = line;
  return result;
}

Body Parser::subparse(const Ends& ends, bool nested) {
  const Level level(*this);
  Body body;
  StatementPtr output;
  const auto flush = [&] {
    if (output) body.push_back(std::move(output));
  };
  const auto add = [&](ExpressionPtr expression) {
    if (!output) output = statement(Statement::Kind::output, expression->line);
    output->expressions.push_back(std::move(expression));
  };
  while (current().kind != Token::Kind::end) {
    const Token& token = next();
    if (token.kind == Token::Kind::data) {
      ExpressionPtr data = make(Expression::Kind::constant, token.line);
      data->value = text_constant(token.text);
      add(std::move(data));
    } else if (token.kind == Token::Kind::variable_begin) {
      add(parse_tuple(true));
      if (current().kind != Token::Kind::variable_end) unexpected("'}}'");
      next();
    } else {
      flush();
      const auto is_end = [&](std::string_view end) { return current().is_name(end); };
      if (std::any_of(ends.begin(), ends.end(), is_end)) return body;
      body.push_back(parse_statement());
      expect_block_end();
    }
  }
  if (nested) {
    fail_syntax(current().line,
                format("the template ends inside a block that {{% {} %}} should close", ends.back()),
                "close the block");
  }
  flush();
  return body;
}

Body Parser::statements_until(const Ends& ends) {
  skip_op(":");
  expect_block_end();
  return subparse(ends, true);
}

StatementPtr Parser::parse_statement() {
  const Token& token = current();
  if (token.kind != Token::Kind::name) unexpected("the name of a tag");
  if (token.text == "if") return parse_if();
  if (token.text == "for") return parse_for();
  if (token.text == "set") return parse_set();
  if (token.text == "macro") return parse_macro();
  if (token.text == "call") return parse_call_block();
  if (token.text == "filter") return parse_filter_block();
  if (token.text == "generation") return parse_generation();
  if (token.text == "break") return statement(Statement::Kind::break_loop, next().line);
  if (token.text == "continue") return statement(Statement::Kind::continue_loop, next().line);
  refuse_tag();
}

void Parser::refuse_tag() const {
  static constexpr std::array<std::string_view, 8> kUnsupported = {
      "import", "from", "include", "extends", "block", "autoescape", "print", "with"};
  const Token& token = current();
  if (std::find(kUnsupported.begin(), kUnsupported.end(), token.text) != kUnsupported.end()) {
    fail_unsupported_at(token.line, format("the tag {{% {} %}}", token.text),
                        "write one template, and use {{ }} and {% set %}");
  }
  fail_syntax(token.line,
              format("the tag {} is unknown or does not belong here", quoted_for_message(token.text)));
}

StatementPtr Parser::parse_if() {
  StatementPtr result = statement(Statement::Kind::conditional, next().line);
  while (true) {
    Branch branch;
    branch.test = parse_tuple(false);
    branch.body = statements_until({"elif", "else", "endif"});
    result->branches.push_back(std::move(branch));
    const std::string& word = next().text;
    if (word == "elif") continue;
    if (word == "else") {
      result->body = statements_until({"endif"});
      next();
    }
    return result;
  }
}

StatementPtr Parser::parse_for() {
  StatementPtr result = statement(Statement::Kind::loop, next().line);
  auto loop = std::make_unique<ForLoop>();
  loop->target = parse_target(false, "in");
  if (!skip_name("in")) unexpected("'in'");
  loop->iterable = parse_tuple(false, "recursive");
  if (skip_name("if")) loop->test = parse_expression();
  if (current().is_name("recursive"))
    fail_unsupported_at(current().line, "a recursive loop", "call a macro for the items inside");
  loop->body = statements_until({"endfor", "else"});
  if (next().text == "else") {
    loop->otherwise = statements_until({"endfor"});
    loop->has_else = !loop->otherwise.empty();
    next();
  }
  result->loop = std::move(loop);
  return result;
}

StatementPtr Parser::parse_set() {
  const int line = next().line;
  ExpressionPtr target = parse_target(true);
  const bool block = !skip_op("=");
  StatementPtr result = statement(block ? Statement::Kind::set_block : Statement::Kind::set, line);
  result->target = std::move(target);
  if (!block) {
    result->value = parse_tuple(true);
    return result;
  }
  while (current().is_op("|")) result->filter = parse_filter(std::move(result->filter));
  result->body = statements_until({"endset"});
  next();
  return result;
}

void Parser::parse_signature(MacroBody& macro) {
  expect_op("(");
  while (!current().is_op(")")) {
    if (!macro.parameters.empty()) expect_op(",");
    ExpressionPtr parameter = parse_name_target(Expression::Use::parameter);
    for (const ExpressionPtr& other : macro.parameters) {
      if (other->name == parameter->name)
        fail_syntax(parameter->line, format("two parameters are named {}", parameter->name));
    }
    if (skip_op("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      fail_syntax(parameter->line,
                  format("the parameter {} has no default, but one before it has", parameter->name));
    }
    if (parameter->name == "caller")
      fail_unsupported_at(parameter->line, "a parameter named caller", "use {% call %}, or rename it");
    macro.parameters.push_back(std::move(parameter));
  }
  next();
}

StatementPtr Parser::parse_macro() {
  StatementPtr result = statement(Statement::Kind::macro, next().line);
  result->macro = std::make_unique<MacroBody>();
  result->macro->line = result->line;
  result->target = parse_name_target(Expression::Use::store);
  result->macro->name = result->target->name;
  parse_signature(*result->macro);
  result->macro->body = statements_until({"endmacro"});
  next();
  return result;
}

StatementPtr Parser::parse_call_block() {
  StatementPtr result = statement(Statement::Kind::call_block, next().line);
  result->macro = std::make_unique<MacroBody>();
  result->macro->line = result->line;
  if (current().is_op("(")) parse_signature(*result->macro);
  result->value = parse_expression();
  if (result->value->kind != Expression::Kind::call) fail_syntax(result->line, "{% call %} needs a call");
  result->macro->body = statements_until({"endcall"});
  next();
  return result;
}

StatementPtr Parser::parse_filter_block() {
  StatementPtr result = statement(Statement::Kind::filter_block, next().line);
  if (current().kind != Token::Kind::name) unexpected("the name of a filter");
  result->filter = parse_filter(nullptr);
  while (current().is_op("|")) result->filter = parse_filter(std::move(result->filter));
  result->body = statements_until({"endfilter"});
  next();
  return result;
}

StatementPtr Parser::parse_generation() {
  StatementPtr result = statement(Statement::Kind::generation, next().line);
  result->macro = std::make_unique<MacroBody>();
  result->macro->line = result->line;
  result->macro->body = statements_until({"endgeneration"});
  next();
  return result;
}

}  // namespace stepforge::jinja
