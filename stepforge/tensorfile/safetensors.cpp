#include "stepforge/tensorfile/safetensors.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
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

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, const SafetensorsLimits& limits)
    : file_(path),
      header_(parse_safetensors(file_.bytes(), static_cast<int64_t>(file_.bytes().size()), path.string(),
                                limits)) {}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.bytes().subspan(static_cast<size_t>(header_.data_begin() + entry.begin),
                               static_cast<size_t>(entry.bytes()));
}

int64_t TensorSpec::bytes() const {
  const std::optional<int64_t> size = tensor_bytes(dtype, shape);
  if (!size)
    throw Error(format("tensor {}: impossible shape {}", quoted_for_message(name), shape_text(shape)));
  return *size;
}

}  // namespace stepforge
