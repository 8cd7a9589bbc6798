// A cursor over the JSON header of a safetensors file. It knows only the few shapes that such a header may
// have, keeps nothing of its own, and can therefore say of every fault at which byte and in which field it
// lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace stepforge {

class HeaderScanner {
 public:
  /// `base` is the offset of header[0] in the file; `source` names the file. Both views must outlive the
  /// scanner.
  HeaderScanner(std::string_view header, std::string_view source, size_t base)
      : header_(header), source_(source), base_(base) {}

  /// What later failures name. The view must stay valid until the next call.
  void set_tensor(std::string_view tensor) { tensor_ = tensor; }
  void set_field(std::string_view field) { field_ = field; }

  /// Offset in the file of the next byte to be read.
  size_t offset() const { return base_ + position_; }
  /// The next byte after white space, without taking it; NUL at the end of the header.
  char peek();
  /// Takes `wanted` if it is next after white space.
  bool accept(char wanted);
  /// As accept, or fails.
  void expect(char wanted);
  /// Appends the decoded string to `out`. Fails on bad UTF-8, bad escapes, a NUL, or more than `max_bytes`
  /// decoded bytes.
  void read_string(std::string& out, size_t max_bytes);
  /// A JSON number that is a non-negative integer below 2^63, written in digits only.
  int64_t read_count();
  /// Fails unless only spaces are left.
  void expect_padding();

  /// Throws FormatError naming file, byte, tensor, field and fault.
  [[noreturn]] void fail(std::string_view fault) const { fail_at(offset(), fault); }
  [[noreturn]] void fail_at(size_t offset, std::string_view fault) const;

 private:
  void read_escape(std::string& out);
  uint32_t read_hex4();
  void copy_utf8(std::string& out);

  std::string_view header_;
  std::string_view source_;
  size_t base_;
  size_t position_ = 0;
  std::string_view tensor_;
  std::string_view field_;
};

}  // namespace stepforge
