// SPDX-License-Identifier: Apache-2.0
// A cursor over JSON text. It stores no values, so a caller needs memory only for those it keeps. Every error
// names the byte offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stepforge {

class JsonScanner {
 public:
  /// `source` names the document, `base` is the offset of text[0] in it. `context`, if given, returns the
  /// text that errors put between the byte and the fault. Both views must outlive the scanner.
  JsonScanner(std::string_view text, std::string_view source, size_t base = 0,
              std::function<std::string()> context = {})
      : text_(text), source_(source), base_(base), context_(std::move(context)) {}

  /// Offset in the document of the next byte to be read.
  size_t offset() const { return base_ + position_; }
  std::string_view rest() const { return text_.substr(position_); }

  /// The next byte after white space, without taking it; NUL at the end of the text.
  char peek();
  /// Takes `wanted` if it is next after white space.
  bool accept(char wanted);
  /// Takes `wanted`, or fails.
  void expect(char wanted);
  /// Takes `word` ("true"), or fails.
  void expect_word(std::string_view word);
  /// Fails unless only white space is left.
  void expect_end();
  /// Appends the decoded string to `out`. Fails on bad UTF-8, bad escapes, or more than `max_bytes` decoded
  /// bytes.
  void read_string(std::string& out, size_t max_bytes = std::string::npos);
  /// Takes a number and returns its text.
  std::string_view read_number();
  /// A number that is a non-negative integer below 2^63, written in digits only.
  int64_t read_count();

  /// Throws FormatError naming source, byte, context and fault.
  [[noreturn]] void fail(std::string_view fault) const { fail_at(offset(), fault); }
  [[noreturn]] void fail_at(size_t offset, std::string_view fault) const;
  /// `found "x", expected {wanted}`
  [[noreturn]] void fail_wanting(std::string_view wanted) const;

 private:
  void read_escape(std::string& out);
  uint32_t read_hex4();
  size_t take_digits();

  std::string_view text_;
  std::string_view source_;
  size_t base_;
  std::function<std::string()> context_;
  size_t position_ = 0;
};

}  // namespace stepforge
