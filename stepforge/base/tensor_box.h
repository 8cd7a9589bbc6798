// Rectangular parts of tensors: what a rank holds of one, and what a file does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stepforge {

/// `sizes` elements from `offsets` on, in each dimension. Its elements are thought of in row-major order.
struct TensorBox {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  int64_t elements() const;
  bool operator==(const TensorBox&) const = default;
};

/// All of a tensor of `shape`.
TensorBox whole_box(const std::vector<int64_t>& shape);

/// Elements [begin, end) of `box` as boxes, in order. Where the range starts or ends inside a row, the rest
/// of that row is a box of its own: at most 2 * dimensions - 1 boxes, the fewest possible.
std::vector<TensorBox> boxes_of_range(const TensorBox& box, int64_t begin, int64_t end);

/// What two boxes of one tensor have in common; nullopt if nothing.
std::optional<TensorBox> intersection(const TensorBox& left, const TensorBox& right);

/// Whether `part` lies inside `box`. An empty part may lie on its border.
bool contains(const TensorBox& box, const TensorBox& part);

/// Copies the elements of `part`, which lies inside both boxes, from the bytes of box `from` into those of
/// box `into`. Both hold exactly their boxes' elements, each of `element_bytes`, at any address.
void copy_part(const TensorBox& part, const TensorBox& from, std::span<const std::byte> source,
               const TensorBox& into, std::span<std::byte> target, int64_t element_bytes);

/// As a slice: "[0:4, 16:32]"
std::string box_text(const TensorBox& box);

}  // namespace stepforge
