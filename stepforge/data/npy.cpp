// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <optional>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

static_assert(std::endian::native == std::endian::little, ".npy values are read as they are stored");

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::string_view kType = "<i8";
constexpr auto kValueBytes = static_cast<int64_t>(sizeof(int64_t));
/// NumPy aligns the values to this many bytes.
constexpr size_t kAlignment = 64;

/// Reads the header from its beginning to its end.
class HeaderParser {
 public:
  HeaderParser(std::string_view head, int64_t file_bytes, const std::string& name)
      : head_(head), file_bytes_(file_bytes), name_(name) {}

  NpyHeader parse() {
    enter();
    take("{");
    while (!try_take("}")) {
      parse_member();
      if (!try_take(",") && !at("}")) fail("expected \",\" or \"}\"");
    }
    skip_spaces();
    if (position_ != head_.size()) fail("more follows after the header");
    require_member(has_type_, "descr");
    require_member(has_order_, "fortran_order");
    require_member(shape_.has_value(), "shape");
    NpyHeader header{.shape = *std::move(shape_), .data_begin = std::ssize(head_)};
    header.values = count_values(header);
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view fault) const {
    throw FormatError(format("{}: byte {}: {}", name_, position_, fault));
  }

  /// Checks what comes before the dictionary and cuts head_ to its end.
  void enter() {
    if (!try_take(kMagic)) fail("not a .npy file, which begins with \"\\x93NUMPY\"");
    const std::string_view version = bytes(2);
    const bool is_first = version == std::string_view("\x01\x00", 2);
    if (!is_first && version != std::string_view("\x02\x00", 2)) {
      fail(format("version {}.{} is not supported, only 1.0 and 2.0", static_cast<int>(version[0]),
                  static_cast<int>(version[1])));
    }
    uint64_t length = 0;
    const std::string_view digits = bytes(is_first ? 2 : 4);
    for (size_t i = 0; i < digits.size(); ++i)
      length |= uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
    if (length > head_.size() - position_)
      fail(format("the header of {} bytes exceeds the file or {} bytes", length, kMaxNpyHeader));
    head_ = head_.substr(0, position_ + length);
  }

  std::string_view bytes(size_t count) {
    if (head_.size() - position_ < count) fail("the file ends here");
    position_ += count;
    return head_.substr(position_ - count, count);
  }

  void parse_member() {
    const std::string_view key = text();
    take(":");
    if (key == "descr") {
      if (const std::string_view type = text(); type != kType)
        fail(format("values of type {}; expected \"{}\", 64-bit integers (array.astype(\"int64\"))",
                    quoted_for_message(type), kType));
      has_type_ = true;
    } else if (key == "fortran_order") {
      if (!try_take("False")) fail("expected False: values in C order (numpy.ascontiguousarray)");
      has_order_ = true;
    } else if (key == "shape") {
      shape_ = tuple();
    } else {
      fail(format("unknown member {}", quoted_for_message(key)));
    }
  }

  void require_member(bool found, std::string_view key) const {
    if (!found) fail(format("the header has no \"{}\"", key));
  }

  std::string_view text() {
    const char quote = at("\"") ? '"' : '\'';
    take(std::string_view(&quote, 1));
    const size_t end = head_.find(quote, position_);
    if (end == std::string_view::npos) fail("this text does not end");
    const std::string_view found = head_.substr(position_, end - position_);
    position_ = end + 1;
    return found;
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> numbers;
    take("(");
    while (!try_take(")")) {
      numbers.push_back(number());
      if (!try_take(",") && !at(")")) fail("expected \",\" or \")\"");
    }
    return numbers;
  }

  int64_t number() {
    skip_spaces();
    int64_t value = 0;
    const char* begin = head_.data() + position_;
    const auto [end, error] = std::from_chars(begin, head_.data() + head_.size(), value);
    if (error != std::errc() || value < 0) fail("expected a length from 0 to 2^63 - 1");
    position_ += static_cast<size_t>(end - begin);
    return value;
  }

  int64_t count_values(const NpyHeader& header) const {
    int64_t count = 1;
    int64_t data_bytes = 0;
    bool fits = true;
    for (const int64_t length : header.shape) fits = fits && !__builtin_mul_overflow(count, length, &count);
    fits = fits && !__builtin_mul_overflow(count, kValueBytes, &data_bytes);
    if (!fits || data_bytes != file_bytes_ - header.data_begin)
      fail(format("the shape ({}) does not match the {} bytes that follow", join_numbers(header.shape),
                  file_bytes_ - header.data_begin));
    return count;
  }

  static std::string join_numbers(const std::vector<int64_t>& numbers) {
    std::vector<std::string> texts;
    for (const int64_t number : numbers) texts.push_back(format("{}", number));
    return join(texts, ", ");
  }

  void skip_spaces() {
    while (position_ < head_.size() && (head_[position_] == ' ' || head_[position_] == '\n')) ++position_;
  }
  bool at(std::string_view word) {
    skip_spaces();
    return head_.substr(position_).starts_with(word);
  }
  bool try_take(std::string_view word) {
    if (!at(word)) return false;
    position_ += word.size();
    return true;
  }
  void take(std::string_view word) {
    if (!try_take(word)) fail(format("expected \"{}\"", word));
  }

  std::string_view head_;
  int64_t file_bytes_;
  const std::string& name_;
  size_t position_ = 0;
  bool has_type_ = false;
  bool has_order_ = false;
  std::optional<std::vector<int64_t>> shape_;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view head, int64_t file_bytes, const std::string& name) {
  return HeaderParser(head, file_bytes, name).parse();
}

NpyArray read_npy(const std::filesystem::path& path) {
  const FileReader file(path);
  const std::string head = file.text(0, std::min(file.size(), kMaxNpyHeader));
  NpyHeader header = parse_npy_header(head, file.size(), path.string());
  NpyArray array{.shape = std::move(header.shape),
                 .values = std::vector<int64_t>(static_cast<size_t>(header.values))};
  file.read(header.data_begin, std::as_writable_bytes(std::span(array.values)));
  return array;
}

void write_npy(const std::filesystem::path& path, std::span<const int64_t> shape,
               std::span<const int64_t> values) {
  std::string lengths;
  for (const int64_t length : shape) lengths += format("{}, ", length);
  std::string header = format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", kType, lengths);
  const size_t before = kMagic.size() + 4;
  header.append(kAlignment - 1 - (before + header.size()) % kAlignment, ' ');
  header += '\n';
  FileWriter file(path);
  file.write(kMagic);
  file.write(std::string{'\x01', '\x00', static_cast<char>(header.size() & 0xFF),
                         static_cast<char>(header.size() >> 8)});
  file.write(header);
  file.write(values.data(), values.size_bytes());
  file.finish();
}

}  // namespace stepforge
