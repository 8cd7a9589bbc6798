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

/// The part of a tensor in one file.
struct StoredPart {
  size_t file = 0;   ///< index into TensorFolder::files()
  size_t entry = 0;  ///< index into that file's tensors()
  TensorSlice slice;
};

/// A tensor whose parts together contain each element once.
struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<StoredPart> parts;  ///< sorted by the position of their first element
  bool transposed = false;        ///< `shape` is that of a matrix, and the files have its transpose
};

class TensorFolder {
 public:
  /// A file without sharding information (dcp.h) contains whole tensors. Throws Error if a file cannot be
  /// read, FormatError if one is malformed, and FormatError listing every tensor whose parts differ in type
  /// or dimensions, overlap, or leave out elements.
  explicit TensorFolder(const std::vector<std::filesystem::path>& paths);

  /// Adds tensors of another folder by name; names that it lacks are ignored. Throws FormatError naming a tensor that both
  /// folders have.
  void adopt(TensorFolder other, const std::vector<std::string>& names);

  /// Gives the tensors, in the order of names(), other names, all different. `note`: one line that says so.
  void rename(const std::vector<std::string>& new_names, std::string note);
  /// Gives a tensor a second name, unless there is one of that name.
  void add_name(const std::string& name, const std::string& new_name);
  /// From now on the tensor is the transpose of the matrix in the files. Throws FormatError if it is no matrix.
  void transpose(const std::string& name);
  /// What a user should know about how the files were read, or "".
  const std::string& note() const { return note_; }

  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Every name, sorted.
  std::vector<std::string> names() const;
  size_t size() const { return tensors_.size(); }
  /// nullptr if there is no such tensor.
  const StoredTensor* find(std::string_view name) const;

  /// Copies the elements of `wanted`, a slice of tensor `name`, to `target`, which must have their exact
  /// size. Of each file only the bytes from the first to the last of them are read. Throws Error if there is
  /// no such tensor or if the slice is not inside it.
  void read(std::string_view name, const TensorSlice& wanted, std::span<std::byte> target) const;
  /// The same for elements [begin, end) of `slice`, in row-major order.
  void read(std::string_view name, const TensorSlice& slice, int64_t begin, int64_t end,
            std::span<std::byte> target) const;

 private:
  void read_slice(const StoredTensor& tensor, const TensorSlice& wanted, std::span<std::byte> target) const;
  void read_transposed(const StoredTensor& tensor, const TensorSlice& wanted,
                       std::span<std::byte> target) const;
  const StoredTensor& at(std::string_view name) const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::string note_;
};

}  // namespace stepforge
