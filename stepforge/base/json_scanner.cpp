// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/json_scanner.h"

#include <charconv>
#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void JsonScanner::fail_at(size_t offset, std::string_view fault) const {
  throw FormatError(format("{}: byte {}: {}{}", source_, offset, context_ ? context_() : "", fault));
}

void JsonScanner::fail_wanting(std::string_view wanted) const {
  if (position_ == text_.size()) fail(format("the text ends, expected {}", wanted));
  fail(format("found {}, expected {}", quoted_for_message(text_.substr(position_, 1)), wanted));
}

char JsonScanner::peek() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    ++position_;
  }
  return '\0';
}

bool JsonScanner::accept(char wanted) {
  if (peek() != wanted) return false;
  ++position_;
  return true;
}

void JsonScanner::expect(char wanted) {
  if (!accept(wanted)) fail_wanting(format("'{}'", std::string_view(&wanted, 1)));
}

void JsonScanner::expect_word(std::string_view word) {
  peek();
  if (!rest().starts_with(word)) fail_wanting("a value");
  position_ += word.size();
}

void JsonScanner::expect_end() {
  peek();
  if (position_ < text_.size()) fail_wanting("the end");
}

void JsonScanner::read_string(std::string& out, size_t max_bytes) {
  expect('"');
  const size_t start = offset() - 1;
  const size_t size_before = out.size();
  while (true) {
    if (position_ == text_.size()) fail_at(start, "the string that starts here has no end");
    const char c = text_[position_];
    if (c == '"') break;
    if (static_cast<uint8_t>(c) < 0x20) fail("control byte in a string");
    if (c == '\\') {
      read_escape(out);
    } else {
      const size_t length = utf8_sequence_length(rest());
      if (length == 0) fail("bad UTF-8");
      out.append(text_, position_, length);
      position_ += length;
    }
    if (out.size() - size_before > max_bytes) {
      fail_at(start, format("the string that starts here is longer than {} bytes", max_bytes));
    }
  }
  ++position_;
}

uint32_t JsonScanner::read_hex4() {
  if (text_.size() - position_ < 4) fail("bad \\u escape");
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = text_[position_];
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit(c) && (lower < 'a' || lower > 'f')) fail("bad \\u escape");
    value = value * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
    ++position_;
  }
  return value;
}

void JsonScanner::read_escape(std::string& out) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  ++position_;
  if (position_ == text_.size()) fail("the text ends inside an escape");
  const char letter = text_[position_];
  if (letter != 'u') {
    const size_t which = kLetters.find(letter);
    if (which == std::string_view::npos) fail("unknown escape in a string");
    out.push_back(kMeanings[which]);
    ++position_;
    return;
  }
  ++position_;
  uint32_t point = read_hex4();
  if (point >= 0xDC00 && point <= 0xDFFF) fail("lone surrogate in a \\u escape");
  if (point >= 0xD800 && point <= 0xDBFF) {
    if (text_.substr(position_, 2) != "\\u") fail("lone surrogate in a \\u escape");
    position_ += 2;
    const uint32_t low = read_hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("lone surrogate in a \\u escape");
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, point);
}

size_t JsonScanner::take_digits() {
  const size_t first = position_;
  while (position_ < text_.size() && is_digit(text_[position_])) ++position_;
  return position_ - first;
}

std::string_view JsonScanner::read_number() {
  const auto take = [this](std::string_view letters) {
    if (position_ == text_.size() || letters.find(text_[position_]) == std::string_view::npos) return false;
    ++position_;
    return true;
  };
  peek();
  const size_t first = position_;
  take("-");
  const bool zero = rest().starts_with('0');
  const size_t digits = take_digits();
  if (digits == 0) fail_wanting(position_ == first ? "a value" : "a digit");
  if (zero && digits > 1) fail_at(base_ + first, "a number with leading zeros");
  if (take(".") && take_digits() == 0) fail_wanting("a digit");
  if (take("eE")) {
    take("+-");
    if (take_digits() == 0) fail_wanting("a digit");
  }
  return text_.substr(first, position_ - first);
}

int64_t JsonScanner::read_count() {
  const char next = peek();
  if (next == '-') fail("a negative number");
  if (!is_digit(next)) fail("not a number");
  const size_t start = offset();
  const std::string_view number = read_number();
  if (number.find_first_of(".eE") != std::string_view::npos) {
    fail_at(start, "not an integer written in digits");
  }
  int64_t value = 0;
  if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc()) {
    fail_at(start, "a number of 2^63 or more");
  }
  return value;
}

}  // namespace stepforge
