// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/tensor_folder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/error_list.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/tensorfile/dcp.h"

namespace stepforge {

namespace {

/// Row-major index of an element in a tensor of `shape`.
int64_t linear_index(const std::vector<int64_t>& shape, const std::vector<int64_t>& index) {
  int64_t number = 0;
  for (size_t i = 0; i < shape.size(); ++i) number = number * shape[i] + index[i];
  return number;
}

int64_t first_of(const StoredTensor& tensor, const TensorSlice& slice) {
  return linear_index(tensor.shape, slice.offsets);
}

int64_t last_of(const std::vector<int64_t>& shape, const TensorSlice& slice) {
  std::vector<int64_t> index = slice.offsets;
  for (size_t i = 0; i < index.size(); ++i) index[i] += slice.sizes[i] - 1;
  return linear_index(shape, index);
}

/// Collects the faults of tensors that are divided between files.
class PartCheck {
 public:
  PartCheck(const std::vector<SafetensorsFile>& files, ErrorList& errors) : files_(files), errors_(errors) {}

  /// Extends the shape by a part. Returns false, after adding an error, if it differs from the parts before.
  bool fits(StoredTensor& tensor, const StoredPart& part) {
    const TensorEntry& entry = files_[part.file].tensors()[part.entry];
    if (entry.dtype != tensor.dtype || entry.shape.size() != tensor.shape.size()) {
      errors_.add(format("{} is {} of {} dimensions in {}, but {} of {} in {}", quoted(tensor),
                         safetensors_name(tensor.dtype), tensor.shape.size(), path_of(tensor.parts.front()),
                         safetensors_name(entry.dtype), entry.shape.size(), path_of(part)));
      return false;
    }
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      tensor.shape[i] = std::max(tensor.shape[i], part.slice.offsets[i] + part.slice.sizes[i]);
    }
    return true;
  }

  /// Sorts the parts and adds errors for overlaps and holes.
  void finish(StoredTensor& tensor) {
    if (!tensor_bytes(tensor.dtype, tensor.shape)) {
      return errors_.add(format("{}: impossible shape {}", quoted(tensor), shape_text(tensor.shape)));
    }
    const int64_t elements = whole_slice(tensor.shape).elements();
    if (elements == 0) return;
    // Those may lie on the boundary, where an element would have no number.
    std::erase_if(tensor.parts, [](const StoredPart& part) { return part.slice.elements() == 0; });
    std::sort(tensor.parts.begin(), tensor.parts.end(),
              [&tensor](const StoredPart& left, const StoredPart& right) {
                return first_of(tensor, left.slice) < first_of(tensor, right.slice);
              });
    int64_t held = 0;
    std::vector<const StoredPart*> open;  // those that reach the current part
    for (const StoredPart& part : tensor.parts) {
      held += part.slice.elements();
      const int64_t first = first_of(tensor, part.slice);
      std::erase_if(open,
                    [&](const StoredPart* other) { return last_of(tensor.shape, other->slice) < first; });
      for (const StoredPart* other : open) {
        if (const auto both = intersection(other->slice, part.slice)) {
          return errors_.add(format("{} is in {} and in {}, which both hold {}", quoted(tensor),
                                    path_of(*other), path_of(part), slice_text(*both)));
        }
      }
      open.push_back(&part);
    }
    if (held == elements) return;
    errors_.add(format("{} {}: {} of {} elements are in no file; it has parts in {}", quoted(tensor),
                       shape_text(tensor.shape), elements - held, elements, files_with(tensor)));
  }

 private:
  static constexpr size_t kMaxNamed = 8;

  static std::string quoted(const StoredTensor& tensor) { return quoted_for_message(tensor.name); }
  std::string path_of(const StoredPart& part) const { return files_[part.file].path().string(); }
  std::string files_with(const StoredTensor& tensor) const {
    std::vector<std::string> names;
    for (const StoredPart& part : tensor.parts) {
      if (names.size() < kMaxNamed) names.push_back(path_of(part));
    }
    if (names.size() < tensor.parts.size()) {
      names.push_back(format("{} more", tensor.parts.size() - names.size()));
    }
    return join(names, ", ");
  }

  const std::vector<SafetensorsFile>& files_;
  ErrorList& errors_;
};

/// Reads short ascending ranges through a buffer: one system call per row of a narrow slice would take longer
/// than reading the bytes.
class ReadAhead {
 public:
  /// Never reads at or after byte `end`.
  ReadAhead(ByteSource source, int64_t end) : source_(std::move(source)), end_(end) {}

  void operator()(int64_t offset, std::span<std::byte> out) {
    const auto count = static_cast<int64_t>(out.size());
    if (count >= kBufferBytes / 4) return source_(offset, out);
    if (offset < begin_ || offset + count > begin_ + std::ssize(buffer_)) {
      begin_ = offset;
      buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, end_ - offset)));
      source_(begin_, buffer_);
    }
    std::memcpy(out.data(), buffer_.data() + (offset - begin_), out.size());
  }

 private:
  static constexpr int64_t kBufferBytes = int64_t{1} << 18;
  ByteSource source_;
  int64_t end_;
  int64_t begin_ = 0;
  std::vector<std::byte> buffer_;
};

std::string where(const std::vector<std::filesystem::path>& paths) {
  return paths.empty() ? std::string("no file")
                       : format("the tensors in {}", paths[0].parent_path().string());
}

}  // namespace

TensorFolder::TensorFolder(const std::vector<std::filesystem::path>& paths) {
  ErrorList errors(where(paths));
  files_.reserve(paths.size());
  PartCheck check(files_, errors);
  for (const std::filesystem::path& path : paths) {
    const SafetensorsFile& file = files_.emplace_back(path);
    const SavedOffsets offsets = read_saved_offsets(file);
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const TensorEntry& entry = file.tensors()[i];
      StoredPart part = {files_.size() - 1, i, {offsets.at(entry.name), entry.shape}};
      const auto [place, added] = tensors_.try_emplace(entry.name);
      StoredTensor& tensor = place->second;
      if (added) {
        tensor = {entry.name, entry.dtype, std::vector<int64_t>(entry.shape.size(), 0), {part}};
        check.fits(tensor, part);
      } else if (check.fits(tensor, part)) {
        tensor.parts.push_back(std::move(part));
      }
    }
  }
  for (auto& [name, tensor] : tensors_) check.finish(tensor);
  errors.throw_if_any();
}

void TensorFolder::adopt(TensorFolder other, const std::vector<std::string>& names) {
  const size_t first = files_.size();
  for (SafetensorsFile& file : other.files_) files_.push_back(std::move(file));
  for (const std::string& name : names) {
    const auto found = other.tensors_.find(name);
    if (found == other.tensors_.end()) continue;
    StoredTensor tensor = std::move(found->second);
    for (StoredPart& part : tensor.parts) part.file += first;
    if (tensors_.contains(name)) {
      throw FormatError(format("{} is in {} and in {}", quoted_for_message(name),
                               files_.front().path().string(),
                               files_.at(tensor.parts.front().file).path().string()));
    }
    tensors_.emplace(name, std::move(tensor));
  }
}

std::vector<std::string> TensorFolder::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

void TensorFolder::rename(const std::vector<std::string>& new_names, std::string note) {
  std::map<std::string, StoredTensor, std::less<>> renamed;
  auto new_name = new_names.begin();
  for (auto& [name, tensor] : tensors_) {
    tensor.name = *new_name;
    renamed.emplace(*new_name++, std::move(tensor));
  }
  tensors_ = std::move(renamed);
  note_ = std::move(note);
}

void TensorFolder::add_name(const std::string& name, const std::string& new_name) {
  StoredTensor tensor = at(name);
  tensor.name = new_name;
  tensors_.insert_or_assign(new_name, std::move(tensor));
}

void TensorFolder::transpose(const std::string& name) {
  StoredTensor& tensor = tensors_.at(name);
  if (tensor.shape.size() != 2)
    throw FormatError(format("{} is {}, no matrix", quoted_for_message(name), shape_text(tensor.shape)));
  std::swap(tensor.shape[0], tensor.shape[1]);
  tensor.transposed = !tensor.transposed;
}

const StoredTensor* TensorFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const StoredTensor& TensorFolder::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw Error(format("there is no tensor {}", quoted_for_message(name)));
  return *tensor;
}

void TensorFolder::read(std::string_view name, const TensorSlice& wanted, std::span<std::byte> target) const {
  read(name, wanted, 0, wanted.elements(), target);
}

void TensorFolder::read(std::string_view name, const TensorSlice& slice, int64_t begin, int64_t end,
                        std::span<std::byte> target) const {
  const StoredTensor& tensor = at(name);
  const auto size = static_cast<size_t>(dtype_bytes(tensor.dtype));
  if (!contains(whole_slice(tensor.shape), slice) || begin < 0 || begin > end || end > slice.elements() ||
      target.size() != static_cast<size_t>(end - begin) * size) {
    throw Error(format("cannot read elements {} to {} of {} of tensor {} {} into {} bytes", begin, end,
                       slice_text(slice), quoted_for_message(name), shape_text(tensor.shape), target.size()));
  }
  for (const TensorSlice& part : slices_of_range(slice, begin, end)) {
    const size_t bytes = static_cast<size_t>(part.elements()) * size;
    if (tensor.transposed)
      read_transposed(tensor, part, target.first(bytes));
    else
      read_slice(tensor, part, target.first(bytes));
    target = target.subspan(bytes);
  }
}

/// Column by column, which the files have as rows.
void TensorFolder::read_transposed(const StoredTensor& tensor, const TensorSlice& wanted,
                                   std::span<std::byte> target) const {
  StoredTensor stored = tensor;
  std::swap(stored.shape[0], stored.shape[1]);
  const int64_t rows = wanted.sizes[0];
  const int64_t columns = wanted.sizes[1];
  const auto size = static_cast<size_t>(dtype_bytes(tensor.dtype));
  std::vector<std::byte> column(static_cast<size_t>(rows) * size);
  for (int64_t c = 0; c < columns; ++c) {
    read_slice(stored, {{wanted.offsets[1] + c, wanted.offsets[0]}, {1, rows}}, column);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(target.data() + static_cast<size_t>(r * columns + c) * size,
                  column.data() + static_cast<size_t>(r) * size, size);
  }
}

void TensorFolder::read_slice(const StoredTensor& tensor, const TensorSlice& wanted,
                              std::span<std::byte> target) const {
  if (wanted.elements() == 0) return;
  const int64_t last = last_of(tensor.shape, wanted);
  for (const StoredPart& part : tensor.parts) {
    if (first_of(tensor, part.slice) > last) return;
    const auto both = intersection(part.slice, wanted);
    if (!both) continue;
    const SafetensorsFile& file = files_[part.file];
    const TensorEntry& entry = file.tensors()[part.entry];
    const int64_t size = dtype_bytes(tensor.dtype);
    TensorSlice inside = *both;
    for (size_t i = 0; i < inside.offsets.size(); ++i) inside.offsets[i] -= part.slice.offsets[i];
    const int64_t end = (last_of(part.slice.sizes, inside) + 1) * size;
    ReadAhead source([&](int64_t offset, std::span<std::byte> out) { file.read(entry, offset, out); }, end);
    copy_part(*both, part.slice, std::ref(source), wanted, target, size);
  }
}

}  // namespace stepforge
