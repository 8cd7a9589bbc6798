#include "stepforge/tensorfile/header_scanner.h"

#include <limits>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void HeaderScanner::fail_at(size_t offset, std::string_view fault) const {
  std::string message = format("{}: byte {}: ", source_, offset);
  if (!tensor_.empty()) message += format("tensor {}: ", quoted_for_message(tensor_));
  if (!field_.empty()) message += format("field {}: ", quoted_for_message(field_));
  throw FormatError(message += fault);
}

char HeaderScanner::peek() {
  while (position_ < header_.size()) {
    const char c = header_[position_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    ++position_;
  }
  return '\0';
}

bool HeaderScanner::accept(char wanted) {
  if (peek() != wanted) return false;
  ++position_;
  return true;
}

void HeaderScanner::expect(char wanted) {
  if (accept(wanted)) return;
  if (position_ == header_.size()) {
    fail(format("the header ends where '{}' is needed", std::string_view(&wanted, 1)));
  }
  const std::string found = quoted_for_message(header_.substr(position_, 1));
  fail(format("found {} where '{}' is needed", found, std::string_view(&wanted, 1)));
}

void HeaderScanner::read_string(std::string& out, size_t max_bytes) {
  expect('"');
  const size_t start = offset() - 1;
  const size_t size_before = out.size();
  while (true) {
    if (position_ == header_.size()) fail_at(start, "the string that starts here has no end");
    const char c = header_[position_];
    if (c == '"') break;
    if (static_cast<uint8_t>(c) < 0x20) fail("control byte in a string");
    if (c == '\\') {
      read_escape(out);
    } else {
      copy_utf8(out);
    }
    if (out.size() - size_before > max_bytes) {
      fail_at(start, format("the string that starts here is longer than {} bytes", max_bytes));
    }
  }
  ++position_;
}

void HeaderScanner::copy_utf8(std::string& out) {
  const size_t length = utf8_sequence_length(header_.substr(position_));
  if (length == 0) fail("bad UTF-8");
  out.append(header_, position_, length);
  position_ += length;
}

uint32_t HeaderScanner::read_hex4() {
  if (header_.size() - position_ < 4) fail("bad \\u escape");
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = header_[position_];
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit(c) && (lower < 'a' || lower > 'f')) fail("bad \\u escape");
    value = value * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
    ++position_;
  }
  return value;
}

void HeaderScanner::read_escape(std::string& out) {
  constexpr std::string_view letters = "\"\\/bfnrt";
  constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
  ++position_;
  if (position_ == header_.size()) fail("the header ends inside an escape");
  const char letter = header_[position_];
  if (letter != 'u') {
    const size_t which = letters.find(letter);
    if (which == std::string_view::npos) fail("unknown escape in a string");
    out.push_back(meanings[which]);
    ++position_;
    return;
  }
  ++position_;
  uint32_t point = read_hex4();
  if (point == 0) fail("NUL in a string");
  if (point >= 0xDC00 && point <= 0xDFFF) fail("lone surrogate in a \\u escape");
  if (point >= 0xD800 && point <= 0xDBFF) {
    if (header_.substr(position_, 2) != "\\u") fail("lone surrogate in a \\u escape");
    position_ += 2;
    const uint32_t low = read_hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("lone surrogate in a \\u escape");
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, point);
}

int64_t HeaderScanner::read_count() {
  const char first = peek();
  if (first == '-') fail("a negative number");
  if (!is_digit(first)) fail("not a number");
  const size_t start = offset();
  uint64_t value = 0;
  bool overflow = false;
  const size_t first_digit = position_;
  for (; position_ < header_.size() && is_digit(header_[position_]); ++position_) {
    const auto digit = static_cast<uint64_t>(header_[position_] - '0');
    overflow = overflow || __builtin_mul_overflow(value, uint64_t{10}, &value) ||
               __builtin_add_overflow(value, digit, &value);
  }
  if (first == '0' && position_ - first_digit > 1) fail_at(start, "a number with leading zeros");
  const char next = position_ < header_.size() ? header_[position_] : '\0';
  if (next == '.' || next == 'e' || next == 'E') fail_at(start, "not an integer written in digits");
  if (overflow || value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    fail_at(start, "a number of 2^63 or more");
  }
  return static_cast<int64_t>(value);
}

void HeaderScanner::expect_padding() {
  const size_t other = header_.find_first_not_of(' ', position_);
  if (other != std::string_view::npos) {
    fail_at(base_ + other, "only spaces may follow the header's closing brace");
  }
}

}  // namespace stepforge
