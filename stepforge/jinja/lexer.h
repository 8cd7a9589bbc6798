// SPDX-License-Identifier: Apache-2.0
// Splits a template into tokens, with Jinja2's rules for white space (trim_blocks and lstrip_blocks on).
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

/// The token as error messages name it.
std::string described(const Token& token);

/// The last token is `end`. `source` must be UTF-8. Throws SourceFault.
std::vector<Token> tokenize(std::string_view source);

/// The value of a literal without its quotes, as Python's unicode-escape decodes it. Throws SourceFault.
std::string unescaped(std::string_view literal, int line);

/// Throw SourceFault.
[[noreturn]] void fail_syntax(int line, std::string message, std::string remedy = "correct the template");
[[noreturn]] void fail_unsupported_at(int line, std::string message, std::string remedy);

}  // namespace stepforge::jinja
