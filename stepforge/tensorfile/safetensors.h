// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors files. The reader checks every size, offset and name before it is used; memory
// stays within four times the size of the file.
//
// The format (https://huggingface.co/docs/safetensors): a little-endian u64 with the length of the header;
// the header, a JSON object {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__":
// {string: string}}, padded with spaces; the data, which the tensors fill without holes or overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/base/files.h"

namespace stepforge {

class BulkFileWriter;

struct SafetensorsLimits {
  int64_t max_header_bytes = 100'000'000;  ///< as in the reference implementation
  size_t max_tensors = 1'000'000;
  size_t max_name_bytes = 1024;
};

/// The largest number of dimensions of a tensor in a file.
inline constexpr size_t kMaxTensorRank = 32;

using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

/// Bytes of a tensor, or nullopt if a size is negative or the product does not fit in 63 bits. A zero does
/// not hide an overflow: the product of the other sizes must fit as well.
std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape);

/// One tensor as the header describes it. Row-major, little-endian.
struct TensorEntry {
  std::string name;
  std::vector<int64_t> shape;
  int64_t begin = 0;           ///< in bytes, from the start of the data section
  int64_t end = 0;             ///< one past the last byte
  uint32_t header_offset = 0;  ///< where the file describes the tensor, for messages
  DType dtype = DType::f32;

  int64_t bytes() const { return end - begin; }
};

/// A validated header: names are unique, byte spans match shapes and types, and they fill the data section in
/// order.
class SafetensorsHeader {
 public:
  /// In the order of their bytes.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// nullptr if there is no such tensor.
  const TensorEntry* find(std::string_view name) const;
  SafetensorsMetadata metadata() const;
  /// Offset in the file of the data section.
  int64_t data_begin() const { return data_begin_; }

 private:
  friend class HeaderParser;
  std::vector<TensorEntry> tensors_;
  std::vector<uint32_t> by_name_;
  std::string metadata_;  ///< "key\0value\0key\0value\0"
  int64_t data_begin_ = 0;
};

/// Parses the header of a file of `file_bytes` bytes. `head` is the beginning of the file, at least its
/// header. Throws FormatError naming `source`, the byte offset, the tensor and the field.
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                    std::string_view source, const SafetensorsLimits& limits = {});

/// A safetensors file open for reading.
class SafetensorsFile {
 public:
  /// Throws Error if the file cannot be read, FormatError if it is malformed.
  explicit SafetensorsFile(const std::filesystem::path& path, const SafetensorsLimits& limits = {});

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors(); }
  const TensorEntry* find(std::string_view name) const { return header_.find(name); }
  SafetensorsMetadata metadata() const { return header_.metadata(); }
  /// Fills `out` with bytes of a tensor, beginning at byte `offset` of it. `entry` must be one of tensors()
  /// and contain the bytes. Throws Error naming the file if they cannot be read.
  void read(const TensorEntry& entry, int64_t offset, std::span<std::byte> out) const;
  /// All bytes of a tensor.
  std::vector<std::byte> bytes(const TensorEntry& entry) const;

 private:
  FileReader file_;
  SafetensorsHeader header_;
};

/// A tensor that is to be written.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;

  /// Throws Error if the shape is negative or the size does not fit in 63 bits.
  int64_t bytes() const;
};

/// `specs` stably sorted by decreasing element size. In this order every tensor begins at a multiple of its
/// element size, which PyTorch needs to map it.
std::vector<TensorSpec> aligned_order(std::vector<TensorSpec> specs);

/// Writes a file in one pass, tensor by tensor in the order of `specs`. Without finish() the destructor
/// removes it.
class SafetensorsWriter {
 public:
  /// Throws Error if the file cannot be created, if the reader would refuse it (names, sizes), or if a tensor
  /// would be misaligned (see aligned_order).
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                    const SafetensorsMetadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Writes the next bytes of tensor `name`, which must be the first incomplete one. Empty tensors need no
  /// call. Throws Error if another tensor is next or if the tensor would get too many bytes.
  void write(std::string_view name, std::span<const std::byte> chunk);
  /// Throws Error if a tensor is incomplete; flushes to the disk and closes. Returns the content hash (base/files.h) of
  /// the file.
  std::string finish();
  int64_t written() const;

 private:
  void skip_complete();

  std::filesystem::path path_;
  std::vector<TensorSpec> specs_;
  std::unique_ptr<BulkFileWriter> writer_;
  size_t current_ = 0;
  int64_t done_ = 0;  ///< bytes written of specs_[current_]
  bool finished_ = false;
};

}  // namespace stepforge
