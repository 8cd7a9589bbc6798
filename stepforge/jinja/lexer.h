// SPDX-License-Identifier: Apache-2.0
// Cuts a template into tokens, with Jinja2's rules for white space (trim_blocks and lstrip_blocks on).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge::jinja {

struct Token {
  enum class Kind : uint8_t {
    data,
    block_begin,
    block_end,
    variable_begin,
    variable_end,
    name,
    string,
    integer,
    floating,
    op,
    end
  };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;  // data, name, string (unescaped), op
  int64_t integer = 0;
  double floating = 0;

  bool is_name(std::string_view name) const { return kind == Kind::name && text == name; }
  bool is_op(std::string_view op) const { return kind == Kind::op && text == op; }
};

/// How an error names the token.
std::string described(const Token& token);

/// The last token is `end`. `source` must be UTF-8. Throws SyntaxFault.
std::vector<Token> tokenize(std::string_view source);

/// A fault at a line of the source.
[[noreturn]] void fail_syntax(int line, std::string message, std::string remedy = "correct the template");
[[noreturn]] void fail_unsupported_at(int line, std::string message, std::string remedy);

}  // namespace stepforge::jinja
