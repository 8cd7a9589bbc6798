// SPDX-License-Identifier: Apache-2.0
// The tensors of several safetensors files; a tensor may be divided between files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

/// What one file holds of a tensor.
struct StoredPart {
  size_t file = 0;   ///< index into TensorFolder::files()
  size_t entry = 0;  ///< index into that file's tensors()
  TensorSlice slice;
};

/// A tensor whose parts together hold each of its elements once.
struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<StoredPart> parts;  ///< by the place of their first element
};

class TensorFolder {
 public:
  /// A file without sharding information (dcp.h) holds whole tensors. Throws Error if a file cannot be read,
  /// FormatError if one is malformed, or listing every tensor whose parts differ in type or dimensions,
  /// overlap, or leave elements out.
  explicit TensorFolder(const std::vector<std::filesystem::path>& paths);

  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Every name, sorted.
  std::vector<std::string> names() const;
  size_t size() const { return tensors_.size(); }
  /// nullptr if there is no such tensor.
  const StoredTensor* find(std::string_view name) const;

  /// Copies the elements of `wanted`, a slice inside tensor `name`, to `target`, which has room for exactly
  /// them, from whatever files hold them; of each file only bytes between the first and the last of them are read. Throws Error if there is no such tensor or
  /// the slice is not inside it.
  void read(std::string_view name, const TensorSlice& wanted, std::span<std::byte> target) const;
  /// Only elements [begin, end) of `slice`, in row-major order.
  void read(std::string_view name, const TensorSlice& slice, int64_t begin, int64_t end,
            std::span<std::byte> target) const;

 private:
  void read_box(const StoredTensor& tensor, const TensorSlice& wanted, std::span<std::byte> target) const;
  const StoredTensor& at(std::string_view name) const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace stepforge
