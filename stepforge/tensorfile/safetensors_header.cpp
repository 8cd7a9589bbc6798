// SPDX-License-Identifier: Apache-2.0
// Parses and validates the header of a safetensors file, which is untrusted input.
#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_scanner.h"
#include "stepforge/base/utf8.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {
namespace {

constexpr size_t kLengthBytes = 8;

/// The header as text, after checking its length.
std::string_view header_text(std::span<const std::byte> head, int64_t file_bytes, std::string_view source,
                             const SafetensorsLimits& limits) {
  if (file_bytes < static_cast<int64_t>(kLengthBytes) || head.size() < kLengthBytes) {
    throw FormatError(
        format("{}: byte 0: field header length: the file holds {} bytes, too few for a "
               "safetensors header",
               source, file_bytes));
  }
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i > 0; --i) length = (length << 8) | std::to_integer<uint64_t>(head[i - 1]);
  const auto refuse = [&](std::string_view fault) {
    throw FormatError(format("{}: byte 0: field header length: {} {}", source, length, fault));
  };
  if (length == 0) refuse("means that there is no header");
  if (length > static_cast<uint64_t>(limits.max_header_bytes)) {
    refuse(format("is more than the {} bytes accepted", limits.max_header_bytes));
  }
  if (length > static_cast<uint64_t>(file_bytes) - kLengthBytes || length > head.size() - kLengthBytes) {
    refuse(format("is more than the {} bytes that follow in the file", file_bytes - int64_t{kLengthBytes}));
  }
  return {reinterpret_cast<const char*>(head.data()) + kLengthBytes, static_cast<size_t>(length)};
}

}  // namespace

/// Parses the text of a header in two passes. The first validates the entries one by one and counts them; the
/// second stores them, so that every list is allocated once, at its exact size.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, int64_t file_bytes, std::string_view source,
               const SafetensorsLimits& limits)
      : scanner_(text, source, kLengthBytes, [this] { return context(); }),
        limits_(limits),
        text_(text),
        data_bytes_(file_bytes - static_cast<int64_t>(kLengthBytes + text.size())) {}

  SafetensorsHeader parse() {
    result_.data_begin_ = static_cast<int64_t>(kLengthBytes + text_.size());
    if (text_.front() != '{') scanner_.fail("the header does not start with '{'");
    const JsonScanner start = scanner_;
    read_members();
    if (const size_t other = scanner_.rest().find_first_not_of(' '); other != std::string_view::npos) {
      scanner_.fail_at(scanner_.offset() + other, "only spaces may follow the header's closing brace");
    }
    result_.tensors_.reserve(tensor_count_);
    result_.metadata_.reserve(metadata_bytes_);
    scratch_ = std::string();
    scanner_ = start;
    storing_ = true;
    metadata_seen_ = false;
    read_members();
    check_names();
    check_spans();
    return std::move(result_);
  }

 private:
  std::string context() const {
    std::string text;
    if (!tensor_.empty()) text += format("tensor {}: ", quoted_for_message(tensor_));
    if (!field_.empty()) text += format("field {}: ", quoted_for_message(field_));
    return text;
  }

  void read_string(std::string& out, size_t max_bytes) {
    const size_t begin = out.size();
    scanner_.read_string(out, max_bytes);
    if (out.find('\0', begin) != std::string::npos) scanner_.fail("NUL in a string");
  }

  /// Reads the top-level object.
  void read_members() {
    scanner_.expect('{');
    if (scanner_.accept('}')) return;
    std::string name;
    do {
      scanner_.peek();
      const size_t at = scanner_.offset();
      name.clear();
      read_string(name, limits_.max_name_bytes);
      scanner_.expect(':');
      if (name == "__metadata__") {
        read_metadata(at);
      } else {
        read_tensor(name, at);
      }
    } while (scanner_.accept(','));
    scanner_.expect('}');
  }

  void check_name(const std::string& name, size_t at) const {
    if (name.empty()) scanner_.fail_at(at, "empty tensor name");
    const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7F; };
    if (std::any_of(name.begin(), name.end(), is_control)) {
      scanner_.fail_at(at, format("control byte in the tensor name {}", quoted_for_message(name)));
    }
  }

  void read_tensor(const std::string& name, size_t at) {
    check_name(name, at);
    tensor_ = name;
    TensorEntry entry;
    entry.header_offset = static_cast<uint32_t>(at);
    read_fields(entry);
    tensor_ = {};
    if (storing_) {
      entry.name.assign(name);
      result_.tensors_.push_back(std::move(entry));
      return;
    }
    check_size(name, entry);
    if (++tensor_count_ > limits_.max_tensors) {
      scanner_.fail_at(at, format("more than {} tensors", limits_.max_tensors));
    }
  }

  /// Checks that shape, dtype and byte span of one tensor agree, and that the span is inside the data.
  void check_size(const std::string& name, const TensorEntry& entry) {
    const size_t at = entry.header_offset;
    tensor_ = name;
    const std::optional<int64_t> needed = tensor_bytes(entry.dtype, entry.shape);
    if (!needed) {
      fail_field(at, "shape", format("the size of {} does not fit in 63 bits", shape_text(entry.shape)));
    }
    if (entry.begin > entry.end) {
      fail_field(at, "data_offsets", format("begin {} is after end {}", entry.begin, entry.end));
    }
    if (entry.end > data_bytes_) {
      fail_field(at, "data_offsets", format("end {} is beyond the {} bytes of data", entry.end, data_bytes_));
    }
    if (*needed != entry.bytes()) {
      fail_field(at, "data_offsets",
                 format("span of {} bytes, but shape {} of {} needs {}", entry.bytes(),
                        shape_text(entry.shape), safetensors_name(entry.dtype), *needed));
    }
    tensor_ = {};
  }

  void read_fields(TensorEntry& entry) {
    static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};
    std::array<bool, kFields.size()> seen{};
    scanner_.expect('{');
    if (scanner_.peek() != '}') {
      do {
        scanner_.peek();
        const size_t at = scanner_.offset();
        scratch_.clear();
        read_string(scratch_, kMaxKeywordBytes);
        const auto which =
            static_cast<size_t>(std::find(kFields.begin(), kFields.end(), scratch_) - kFields.begin());
        if (which == kFields.size()) fail_field(at, scratch_, "unknown field");
        if (std::exchange(seen[which], true)) fail_field(at, scratch_, "given twice");
        field_ = kFields[which];
        scanner_.expect(':');
        if (which == 0) entry.dtype = read_dtype();
        if (which == 1) entry.shape = read_shape();
        if (which == 2) read_offsets(entry);
        field_ = {};
      } while (scanner_.accept(','));
    }
    scanner_.expect('}');
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (!seen[i]) fail_field(entry.header_offset, kFields[i], "missing");
    }
  }

  DType read_dtype() {
    scanner_.peek();
    const size_t at = scanner_.offset();
    scratch_.clear();
    read_string(scratch_, kMaxKeywordBytes);
    const std::optional<DType> dtype = dtype_from_safetensors(scratch_);
    if (!dtype &&
        (scratch_.starts_with("F8_") || scratch_.starts_with("F6_") || scratch_.starts_with("F4"))) {
      scanner_.fail_at(
          at, format("element type {}: weights of 8 bits and fewer are not read; convert them to BF16 "
                     "first (DeepSeek's models with their fp8_cast_bf16.py), or download a BF16 copy",
                     quoted_for_message(scratch_)));
    }
    if (!dtype) {
      scanner_.fail_at(
          at, format("unknown element type {}; known: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL",
                     quoted_for_message(scratch_)));
    }
    return *dtype;
  }

  std::vector<int64_t> read_shape() {
    std::array<int64_t, kMaxTensorRank> sizes{};
    size_t rank = 0;
    scanner_.expect('[');
    if (scanner_.peek() != ']') {
      do {
        if (rank == sizes.size()) scanner_.fail(format("more than {} dimensions", kMaxTensorRank));
        sizes[rank++] = scanner_.read_count();
      } while (scanner_.accept(','));
    }
    scanner_.expect(']');
    return {sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(rank)};
  }

  void read_offsets(TensorEntry& entry) {
    scanner_.expect('[');
    entry.begin = scanner_.read_count();
    scanner_.expect(',');
    entry.end = scanner_.read_count();
    scanner_.expect(']');
  }

  /// Decodes the metadata into one string: a map with many tiny entries would take many times the file's
  /// size.
  void read_metadata(size_t at) {
    field_ = "__metadata__";
    if (std::exchange(metadata_seen_, true)) scanner_.fail_at(at, "given twice");
    std::vector<uint32_t> keys;  // where each key starts in result_.metadata_
    if (storing_) keys.reserve(metadata_count_);
    scanner_.expect('{');
    if (!scanner_.accept('}')) {
      do {
        if (storing_) keys.push_back(static_cast<uint32_t>(result_.metadata_.size()));
        read_metadata_text();
        scanner_.expect(':');
        if (scanner_.peek() != '"') scanner_.fail("a value is not a string");
        read_metadata_text();
        ++metadata_count_;
      } while (scanner_.accept(','));
      scanner_.expect('}');
    }
    check_metadata_keys(keys, at);
    field_ = {};
  }

  void read_metadata_text() {
    std::string& text = storing_ ? result_.metadata_ : scratch_;
    if (!storing_) scratch_.clear();
    read_string(text, text_.size());
    text.push_back('\0');
    if (!storing_) metadata_bytes_ += scratch_.size();
  }

  void check_metadata_keys(std::vector<uint32_t>& keys, size_t at) const {
    const auto key = [this](uint32_t start) { return std::string_view(result_.metadata_.c_str() + start); };
    const auto less = [&](uint32_t left, uint32_t right) { return key(left) < key(right); };
    const auto equal = [&](uint32_t left, uint32_t right) { return key(left) == key(right); };
    std::sort(keys.begin(), keys.end(), less);
    const auto twice = std::adjacent_find(keys.begin(), keys.end(), equal);
    if (twice != keys.end()) {
      scanner_.fail_at(at, format("duplicate key {}", quoted_for_message(key(*twice))));
    }
  }

  /// Builds the index by name, in which duplicate names are neighbours.
  void check_names() {
    const std::vector<TensorEntry>& tensors = result_.tensors_;
    const auto file_order = [](const TensorEntry& left, const TensorEntry& right) {
      return std::tie(left.begin, left.end, left.header_offset) <
             std::tie(right.begin, right.end, right.header_offset);
    };
    std::sort(result_.tensors_.begin(), result_.tensors_.end(), file_order);
    std::vector<uint32_t>& index = result_.by_name_;
    index.resize(tensors.size());
    std::iota(index.begin(), index.end(), 0U);
    std::sort(index.begin(), index.end(),
              [&](uint32_t left, uint32_t right) { return tensors[left].name < tensors[right].name; });
    for (size_t i = 1; i < index.size(); ++i) {
      const TensorEntry& left = tensors[index[i - 1]];
      const TensorEntry& right = tensors[index[i]];
      if (left.name != right.name) continue;
      tensor_ = left.name;
      scanner_.fail_at(std::max(left.header_offset, right.header_offset), "duplicate tensor name");
    }
  }

  /// Checks that the tensors, in the order of their bytes, fill the data without overlap or hole.
  void check_spans() {
    int64_t expected = 0;
    for (const TensorEntry& entry : result_.tensors_) {
      tensor_ = entry.name;
      if (entry.begin < expected) {
        fail_field(entry.header_offset, "data_offsets",
                   format("begins at {}, inside the tensor before it, which ends at {}: overlap", entry.begin,
                          expected));
      }
      if (entry.begin > expected) {
        fail_field(entry.header_offset, "data_offsets",
                   format("begins at {}, but the tensor before it ends at {}: hole", entry.begin, expected));
      }
      expected = entry.end;
    }
    tensor_ = {};
    if (expected != data_bytes_) {
      scanner_.fail_at(static_cast<size_t>(result_.data_begin_ + expected),
                       format("{} bytes that belong to no tensor follow the data", data_bytes_ - expected));
    }
  }

  [[noreturn]] void fail_field(size_t at, std::string_view field, std::string_view fault) {
    field_ = field;
    scanner_.fail_at(at, fault);
  }

  /// Longest field or dtype name that is read.
  static constexpr size_t kMaxKeywordBytes = 64;

  JsonScanner scanner_;
  std::string_view tensor_;  // the tensor and the field being read, for errors
  std::string_view field_;
  const SafetensorsLimits& limits_;
  std::string_view text_;
  int64_t data_bytes_;
  SafetensorsHeader result_;
  std::string scratch_;  // a short string being read
  bool metadata_seen_ = false;
  bool storing_ = false;  // in the second pass
  size_t tensor_count_ = 0;
  size_t metadata_count_ = 0;
  size_t metadata_bytes_ = 0;
};

SafetensorsHeader parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                    std::string_view source, const SafetensorsLimits& limits) {
  const std::string_view text = header_text(head, file_bytes, source, limits);
  return HeaderParser(text, file_bytes, source, limits).parse();
}

}  // namespace stepforge
