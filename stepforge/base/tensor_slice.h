// SPDX-License-Identifier: Apache-2.0
// Rectangular parts of tensors: the part that a rank or a file holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stepforge {

/// In each dimension, `sizes` elements beginning at `offsets`. Functions that number the elements of a slice
/// use row-major order.
struct TensorSlice {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  int64_t elements() const;
  bool operator==(const TensorSlice&) const = default;
};

/// All of a tensor of `shape`.
TensorSlice whole_slice(const std::vector<int64_t>& shape);

/// Elements [begin, end) of `slice` as slices, in order. If the range starts or ends inside a row, its part
/// of that row is a slice of its own: at most 2 * dimensions - 1 slices, the fewest possible.
std::vector<TensorSlice> slices_of_range(const TensorSlice& slice, int64_t begin, int64_t end);

/// `part` of a tensor that begins at `offsets` of a larger one, as a slice of the larger one.
TensorSlice moved(TensorSlice part, const std::vector<int64_t>& offsets);

/// The common elements of two slices of one tensor; nullopt if there are none.
std::optional<TensorSlice> intersection(const TensorSlice& left, const TensorSlice& right);

/// Whether `part` lies inside `slice`. An empty part may lie on its boundary.
bool contains(const TensorSlice& slice, const TensorSlice& part);

/// Fills `out` with the bytes from `offset` on.
using ByteSource = std::function<void(int64_t offset, std::span<std::byte> out)>;

/// Copies the elements of `part`, which lies inside both slices, from the bytes of slice `from` to those of
/// slice `into`. Source and target hold exactly the elements of their slices, `element_bytes` each, without
/// any alignment. `source` is called for runs of bytes in ascending order.
void copy_part(const TensorSlice& part, const TensorSlice& from, const ByteSource& source,
               const TensorSlice& into, std::span<std::byte> target, int64_t element_bytes);
void copy_part(const TensorSlice& part, const TensorSlice& from, std::span<const std::byte> source,
               const TensorSlice& into, std::span<std::byte> target, int64_t element_bytes);

/// "[0:4, 16:32]"
std::string slice_text(const TensorSlice& slice);

}  // namespace stepforge
