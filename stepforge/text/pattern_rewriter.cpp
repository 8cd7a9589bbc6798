// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/pattern_rewriter.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/unicode_supplement.h"

namespace stepforge {

namespace {

// White_Space of Unicode, unchanged since version 6.3. PCRE2's \s includes U+180E, Oniguruma's does not.
constexpr std::string_view kWhiteSpace =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{"
    "3000}";
constexpr std::string_view kNotWhiteSpace =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-"
    "\\x{2027}"
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{D7FF}\\x{E000}-\\x{10FFFF}";

constexpr std::array<std::string_view, 13> kKnownCategories = {"L",  "N",  "M",  "P",  "S",  "Lu", "Ll",
                                                               "Lt", "Lm", "Lo", "Nd", "Nl", "No"};
// Pairs of letters that case folding maps to or from one character that is not ASCII.
constexpr std::array<std::string_view, 5> kMultiCharacterFolds = {"ff", "fi", "fl", "ss", "st"};

/// The members of one general category, for use inside a character class.
std::string category_members(std::string_view category) {
  std::string members = format("\\p{{{}}}", category);
  for (const CategoryRange& range : unicode_supplement()) {
    if (!std::string_view(range.category).starts_with(category)) continue;
    members += format("\\x{{{:X}}}-\\x{{{:X}}}", static_cast<uint32_t>(range.first),
                      static_cast<uint32_t>(range.last));
  }
  return members;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_ascii_punctuation(char c) {
  return c > ' ' && c < 0x7F && std::isalnum(static_cast<unsigned char>(c)) == 0;
}

class Rewriter {
 public:
  Rewriter(std::string_view pattern, std::string_view source) : pattern_(pattern), source_(source) {}

  std::string run() {
    while (at_ < pattern_.size()) rewrite_one();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw FormatError(format("{}: {} at byte {} of the regular expression \"{}\" is not supported", source_,
                             construct, at_, pattern_));
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool caseless() const { return std::find(caseless_.begin(), caseless_.end(), true) != caseless_.end(); }
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void rewrite_one() {
    if (caseless() && peek() != ')' && peek() != '$' && peek() != '^') return caseless_literal();
    switch (peek()) {
      case '\\':
        return escape();
      case '[':
        return character_class();
      case '(':
        return open_group();
      case ')':
        if (caseless_.empty()) refuse("an unmatched )");
        caseless_.pop_back();
        return copy(1);
      case '{':
        return counted_quantifier();
      case '^':
      case '$':
        return anchor(peek() == '^' ? "(?m:^)" : "(?m:$)", 1);
      default:
        copy(1);
    }
  }

  /// Both engines know lines that end with "\n" alone: $ also holds before the last one, ^ not after it.
  void anchor(std::string_view written, size_t size) {
    const char next = peek(size);
    if (next == '*' || next == '+' || next == '?' || next == '{') refuse("a quantifier after an anchor");
    out_ += written;
    at_ += size;
  }

  /// Inside (?i: only plain ASCII text and | are accepted: both engines fold their case in the same way.
  void caseless_literal() {
    const char c = peek();
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '\'' || c == '|' || c == ' ' || c == '-';
    if (!plain || static_cast<unsigned char>(c) >= 0x80) refuse("this character inside (?i:...)");
    std::string next_two(pattern_.substr(at_, 2));
    for (char& letter : next_two)
      letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    for (const std::string_view fold : kMultiCharacterFolds) {
      if (next_two == fold) refuse(format("\"{}\" inside (?i:...)", fold));
    }
    copy(1);
  }

  void open_group() {
    constexpr std::array<std::string_view, 7> kOpenings = {"(?:",  "(?i:", "(?=", "(?!",
                                                           "(?<=", "(?<!", "(?>"};
    for (const std::string_view opening : kOpenings) {
      if (!follows(opening)) continue;
      caseless_.push_back(opening == "(?i:");
      return copy(opening.size());
    }
    if (peek(1) == '?' || peek(1) == '*') refuse(format("the group \"{}\"", pattern_.substr(at_, 3)));
    caseless_.push_back(false);
    copy(1);
  }

  /// {m}, {m,}, {m,n}. Oniguruma and PCRE2 disagree about a + or ? after it.
  void counted_quantifier() {
    size_t length = 1;
    while (is_digit(peek(length))) ++length;
    if (length == 1) refuse("a { that does not begin {m,n}");
    if (peek(length) == ',') ++length;
    while (is_digit(peek(length))) ++length;
    if (peek(length) != '}') refuse("a { that does not begin {m,n}");
    ++length;
    if (peek(length) == '+' || peek(length) == '?') refuse("a + or ? after {m,n}");
    copy(length);
  }

  /// Reads \p{Name} or \P{Name} and returns the members of the class.
  std::string property() {
    const size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("a \\p without {name}");
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    if (std::find(kKnownCategories.begin(), kKnownCategories.end(), name) == kKnownCategories.end()) {
      refuse(format("the character property \\p{{{}}}", name));
    }
    at_ = close + 1;
    return category_members(name);
  }

  /// An escape for one character, the same inside and outside a class.
  void character_escape() {
    const char c = peek(1);
    if (c == 'x' && peek(2) == '{') {
      const size_t close = pattern_.find('}', at_);
      if (close == std::string_view::npos) refuse("an unfinished \\x{...}");
      return copy(close + 1 - at_);
    }
    const bool control = c == 'r' || c == 'n' || c == 't' || c == 'f';
    if (!control && !is_ascii_punctuation(c)) refuse(format("the escape \"{}\"", pattern_.substr(at_, 2)));
    copy(2);
  }

  void escape() {
    const char c = peek(1);
    if (c == 'p' || c == 'P') {
      const std::string members = property();
      out_ += format(c == 'p' ? "[{}]" : "[^{}]", members);
    } else if (c == 's' || c == 'S') {
      out_ += format(c == 's' ? "[{}]" : "[^{}]", kWhiteSpace);
      at_ += 2;
    } else if (c == 'd' || c == 'D') {
      out_ += format(c == 'd' ? "[{}]" : "[^{}]", category_members("Nd"));
      at_ += 2;
    } else if (c == 'A' || c == 'z' || c == 'Z') {
      anchor(pattern_.substr(at_, 2), 2);
    } else {
      character_escape();
    }
  }

  void character_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']' || peek() == '-') refuse("a class that begins with ] or -");
    while (peek() != ']') {
      if (at_ >= pattern_.size()) refuse("an unfinished character class");
      if (peek() == '[') refuse("a nested character class");
      if (follows("&&")) refuse("an intersection of classes");
      class_item();
    }
    copy(1);
  }

  void class_item() {
    if (peek() != '\\') return copy(1);
    const char c = peek(1);
    if (c != 'p' && c != 's' && c != 'S' && c != 'd') return character_escape();
    if (at_ > 1 && pattern_[at_ - 1] == '-' && pattern_[at_ - 2] != '\\')
      refuse("a range that ends in a class");
    if (c == 'p') {
      out_ += property();
    } else {
      out_ += c == 'd' ? category_members("Nd") : std::string(c == 's' ? kWhiteSpace : kNotWhiteSpace);
      at_ += 2;
    }
    if (peek() == '-' && peek(1) != ']') refuse("a range that begins in a class");
  }

  std::string_view pattern_;
  std::string_view source_;
  size_t at_ = 0;
  std::string out_;
  /// For each open group, whether it is (?i:.
  std::vector<bool> caseless_;
};

}  // namespace

std::string rewrite_pattern(std::string_view pattern, std::string_view source) {
  require_utf8(pattern, source);
  return Rewriter(pattern, source).run();
}

}  // namespace stepforge
