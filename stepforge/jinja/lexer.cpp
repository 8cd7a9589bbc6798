// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/lexer.h"

#include <charconv>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/parser.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {

void fail_syntax(int line, std::string message, std::string remedy) {
  throw SourceFault{TemplateError::Reason::syntax, line, std::move(message), std::move(remedy)};
}

void fail_unsupported_at(int line, std::string message, std::string remedy) {
  throw SourceFault{TemplateError::Reason::unsupported, line, std::move(message), std::move(remedy)};
}

std::string described(const Token& token) {
  // In the order of Token::Kind.
  static constexpr std::string_view kNames[] = {
      "text", "{%", "%}", "{{", "}}", "", "a string", "a number", "a number", "", "the end of the template"};
  static_assert(std::size(kNames) == static_cast<size_t>(Token::Kind::end) + 1);
  const bool named = token.kind == Token::Kind::name || token.kind == Token::Kind::op;
  return named ? token.text : std::string(kNames[static_cast<size_t>(token.kind)]);
}

namespace {

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// CR LF and CR become LF; one line end at the end of the template is dropped.
std::string with_unix_lines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) outside();
    add(Token::Kind::end);
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view prefix, size_t at) const {
    return std::string_view(text_).substr(at).starts_with(prefix);
  }
  bool starts(std::string_view prefix) const { return starts(prefix, at_); }
  char peek(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  Token& add(Token::Kind kind) {
    tokens_.emplace_back();
    tokens_.back().kind = kind;
    tokens_.back().line = line_;
    return tokens_.back();
  }

  /// Moves to `end` and counts lines.
  void advance(size_t end) {
    for (; at_ < end; ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
    line_starting_ = end > 0 && text_[end - 1] == '\n';
  }

  size_t skip_space(size_t at) const {
    while (const size_t length = space_length(std::string_view(text_).substr(at))) at += length;
    return at;
  }

  void add_data(std::string_view data) {
    if (!data.empty()) add(Token::Kind::data).text = data;
  }

  /// The text before a tag, with the tag's sign and lstrip_blocks applied.
  std::string_view before_tag(size_t begin, size_t tag, char sign, bool variable) const {
    std::string_view text = std::string_view(text_).substr(begin, tag - begin);
    if (sign == '-') return stripped_right(text);
    if (sign == '+' || variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    if ((start > 0 || line_starting_) && skip_space(begin + start) >= tag) return text.substr(0, start);
    return text;
  }

  /// The end of "raw %}" or "endraw %}" whose word begins at or after `at`, 0 if it is not there.
  size_t raw_tag_end(size_t at, std::string_view word, bool closes) const {
    at = skip_space(at);
    if (!starts(word, at)) return 0;
    at = skip_space(at + word.size());
    if (starts("-%}", at)) return skip_space(at + 3);
    if (closes && starts("+%}", at)) return at + 3;
    if (!starts("%}", at)) return 0;
    return at + 2 + (closes && peek(at + 2) == '\n' ? 1 : 0);
  }

  char sign_at(size_t at) const { return peek(at) == '-' || peek(at) == '+' ? text_[at] : '\0'; }

  void outside() {
    size_t tag = at_;
    do {
      tag = text_.find('{', tag);
      if (tag == std::string::npos) {
        add_data(std::string_view(text_).substr(at_));
        return advance(text_.size());
      }
      const char next = peek(tag + 1);
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    } while (true);
    const char kind = text_[tag + 1];
    const char sign = sign_at(tag + 2);
    const size_t inside = tag + 2 + (sign != '\0' ? 1 : 0);
    add_data(before_tag(at_, tag, sign, kind == '{'));
    const size_t raw = kind == '%' ? raw_tag_end(inside, "raw", false) : 0;
    if (raw != 0) {
      advance(raw);
      return raw_block();
    }
    advance(inside);
    if (kind == '#') return comment();
    add(kind == '%' ? Token::Kind::block_begin : Token::Kind::variable_begin);
    tag_tokens(kind == '%');
  }

  void comment() {
    if (at_ == text_.size()) return;  // as Jinja2 does
    const size_t close = text_.find("#}", at_);
    if (close == std::string::npos) fail_syntax(line_, "a comment {# has no end", "close it with #}");
    const char sign = close > at_ ? text_[close - 1] : '\0';
    size_t end = close + 2;
    if (sign == '-')
      end = skip_space(end);
    else if (sign != '+' && peek(end) == '\n')
      ++end;
    advance(end);
  }

  void raw_block() {
    if (at_ == text_.size()) return;
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      const size_t end = raw_tag_end(tag + 2 + (sign != '\0' ? 1 : 0), "endraw", true);
      if (end == 0) continue;
      add_data(before_tag(at_, tag, sign, false));
      return advance(end);
    }
    fail_syntax(line_, "a raw block has no end", "close it with {% endraw %}");
  }

  /// The end of the closing delimiter here, or 0.
  size_t tag_end(bool block) const {
    const std::string_view close = block ? "%}" : "}}";
    if (starts("-") && starts(close, at_ + 1)) return skip_space(at_ + 3);
    if (block && starts("+") && starts(close, at_ + 1)) return at_ + 3;
    if (!starts(close)) return 0;
    return at_ + 2 + (block && peek(at_ + 2) == '\n' ? 1 : 0);
  }

  void tag_tokens(bool block) {
    const int line = line_;
    brackets_.clear();
    while (at_ < text_.size()) {
      const size_t end = brackets_.empty() ? tag_end(block) : 0;
      if (end != 0) {
        add(block ? Token::Kind::block_end : Token::Kind::variable_end);
        return advance(end);
      }
      token();
    }
    fail_syntax(line, block ? "a tag {% has no end" : "a tag {{ has no end",
                "close it, and its brackets and strings");
  }

  void token() {
    const char c = text_[at_];
    if (const size_t end = skip_space(at_); end != at_) return advance(end);
    if (is_ascii_digit(c)) return number();
    if (is_name_start(c)) return name();
    if (c == '\'' || c == '"') return string(c);
    if (static_cast<unsigned char>(c) >= 0x80) {
      fail_unsupported_at(line_,
                          format("the character {} in an expression",
                                 quoted_for_message(std::string_view(text_).substr(at_, 4))),
                          "names consist of ASCII letters, digits and _; put other text into quotes");
    }
    op();
  }

  void name() {
    size_t end = at_;
    while (is_name_start(peek(end)) || is_ascii_digit(peek(end))) ++end;
    if (static_cast<unsigned char>(peek(end)) >= 0x80 && !space_length(std::string_view(text_).substr(end))) {
      fail_unsupported_at(line_, "a name with characters beyond ASCII", "rename it");
    }
    add(Token::Kind::name).text = text_.substr(at_, end - at_);
    advance(end);
  }

  size_t digits_end(size_t at) const {
    while (is_ascii_digit(peek(at))) ++at;
    return at;
  }

  /// The end of the floating point number here, or 0.
  size_t float_end() const {
    if (at_ > 0 && text_[at_ - 1] == '.') return 0;
    size_t end = digits_end(at_);
    const bool fraction = peek(end) == '.' && is_ascii_digit(peek(end + 1));
    if (fraction) end = digits_end(end + 1);
    if (peek(end) == 'e' || peek(end) == 'E') {
      const size_t exponent = end + 1 + (peek(end + 1) == '+' || peek(end + 1) == '-' ? 1 : 0);
      if (is_ascii_digit(peek(exponent))) return digits_end(exponent);
    }
    return fraction ? end : 0;
  }

  void number() {
    const size_t real_end = float_end();
    const size_t end = real_end != 0 ? real_end : digits_end(at_);
    const std::string_view digits = std::string_view(text_).substr(at_, end - at_);
    if (peek(end) == '_' ||
        (digits == "0" && std::string_view("xXoObB").find(peek(end)) != std::string_view::npos &&
         peek(end) != '\0')) {
      fail_unsupported_at(line_, "a number with a prefix or underscores", "write it in decimal");
    }
    if (real_end != 0)
      real(digits);
    else
      integer(digits);
    advance(end);
  }

  void real(std::string_view digits) {
    double value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec ==
        std::errc::result_out_of_range)
      value = digits.find("e-") == std::string_view::npos && digits.find("E-") == std::string_view::npos
                  ? HUGE_VAL
                  : 0.0;
    add(Token::Kind::floating).floating = value;
  }

  void integer(std::string_view digits) {
    if (digits[0] == '0' && digits.find_first_not_of('0') != std::string_view::npos)
      fail_syntax(line_, format("the number {} begins with 0", digits), "write it without the 0");
    int64_t value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc()) {
      throw SourceFault{TemplateError::Reason::limit, line_,
                        format("the integer {} needs more than 64 bits", quoted_for_message(digits)),
                        "write a smaller one"};
    }
    add(Token::Kind::integer).integer = value;
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size())
      fail_syntax(line_, "a string has no end", "close it with the quote that began it");
    add(Token::Kind::string).text = unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1), line_);
    advance(end + 1);
  }

  void op() {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = text_[at_];
    size_t length = 0;
    for (const std::string_view candidate : kLong) length = starts(candidate) ? 2 : length;
    if (length == 0 && std::string_view("+-/*%~[](){}><=.:|,;").find(c) != std::string_view::npos) length = 1;
    if (length == 0)
      fail_syntax(line_, format("unexpected character {}", quoted_for_message(text_.substr(at_, 1))));
    balance(c);
    add(Token::Kind::op).text = text_.substr(at_, length);
    advance(at_ + length);
  }

  void balance(char c) {
    if (c == '(') brackets_ += ')';
    if (c == '[') brackets_ += ']';
    if (c == '{') brackets_ += '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (brackets_.empty() || brackets_.back() != c) {
      fail_syntax(line_, format("unexpected '{}'", std::string(1, c)), "balance the brackets");
    }
    brackets_.pop_back();
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string brackets_;  // closing brackets expected, innermost last
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(with_unix_lines(source)).run();
}

}  // namespace stepforge::jinja
