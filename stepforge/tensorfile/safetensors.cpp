// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/safetensors.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/lfs_pointer.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t product = dtype_bytes(dtype);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  return found != by_name_.end() && tensors_[*found].name == name ? &tensors_[*found] : nullptr;
}

SafetensorsMetadata SafetensorsHeader::metadata() const {
  SafetensorsMetadata result;
  std::string_view rest = metadata_;
  const auto take = [&rest] {
    const size_t size = rest.find('\0');
    std::string text(rest.substr(0, size));
    rest.remove_prefix(size + 1);
    return text;
  };
  while (!rest.empty()) {
    std::string key = take();
    result.emplace(std::move(key), take());
  }
  return result;
}

namespace {

/// Reads the header only. The parser checks its length.
SafetensorsHeader read_header(const FileReader& file, const SafetensorsLimits& limits) {
  uint64_t length = 0;
  const auto prefix = static_cast<int64_t>(sizeof length);
  int64_t head_bytes = file.size();
  if (file.size() >= prefix) {
    file.read(0, std::as_writable_bytes(std::span(&length, 1)));
    const int64_t max_length = std::min(limits.max_header_bytes, file.size() - prefix);
    head_bytes = prefix + static_cast<int64_t>(std::min(length, static_cast<uint64_t>(max_length)));
  }
  const std::string head = file.text(0, head_bytes);
  refuse_lfs_pointer(head, file.size(), file.path().string());
  return parse_safetensors(std::as_bytes(std::span(head)), file.size(), file.path().string(), limits);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, const SafetensorsLimits& limits)
    : file_(path), header_(read_header(file_, limits)) {}

void SafetensorsFile::read(const TensorEntry& entry, int64_t offset, std::span<std::byte> out) const {
  file_.read(header_.data_begin() + entry.begin + offset, out);
}

std::vector<std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes()));
  read(entry, 0, bytes);
  return bytes;
}

int64_t TensorSpec::bytes() const {
  const std::optional<int64_t> size = tensor_bytes(dtype, shape);
  if (!size)
    throw Error(format("tensor {}: impossible shape {}", quoted_for_message(name), shape_text(shape)));
  return *size;
}

}  // namespace stepforge
