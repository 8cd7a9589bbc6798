#include "stepforge/base/tensor_box.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

int64_t product(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Cuts ranges of `box` into boxes, from the dimension with the longest rows to the one with the shortest.
class RangeCutter {
 public:
  explicit RangeCutter(const TensorBox& box) : box_(box), at_(box.offsets) {}

  /// Elements [begin, end) of what lies at at_ in the dimensions before `dimension`.
  void cut(size_t dimension, int64_t begin, int64_t end) {
    if (begin == end) return;
    if (dimension == box_.sizes.size()) return add(dimension, 1);
    const int64_t row = product(std::span(box_.sizes).subspan(dimension + 1));
    if (begin % row != 0) {
      const int64_t stop = std::min(end, (begin / row + 1) * row);
      cut_row(dimension, begin, stop);
      begin = stop;
    }
    if (const int64_t full = (end - begin) / row; full > 0) {
      at_[dimension] = box_.offsets[dimension] + begin / row;
      add(dimension, full);
      begin += full * row;
    }
    if (begin < end) cut_row(dimension, begin, end);
  }

  std::vector<TensorBox> boxes;

 private:
  /// A part of one row.
  void cut_row(size_t dimension, int64_t begin, int64_t end) {
    const int64_t row = product(std::span(box_.sizes).subspan(dimension + 1));
    at_[dimension] = box_.offsets[dimension] + begin / row;
    cut(dimension + 1, begin % row, end - begin / row * row);
  }

  /// `rows` whole rows at at_.
  void add(size_t dimension, int64_t rows) {
    TensorBox part = {at_, box_.sizes};
    for (size_t i = 0; i < dimension; ++i) part.sizes[i] = 1;
    if (dimension < part.sizes.size()) part.sizes[dimension] = rows;
    for (size_t i = dimension + 1; i < part.sizes.size(); ++i) part.offsets[i] = box_.offsets[i];
    boxes.push_back(std::move(part));
  }

  const TensorBox& box_;
  std::vector<int64_t> at_;
};

}  // namespace

int64_t TensorBox::elements() const {
  return product(sizes);
}

TensorBox whole_box(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

std::vector<TensorBox> boxes_of_range(const TensorBox& box, int64_t begin, int64_t end) {
  RangeCutter cutter(box);
  cutter.cut(0, begin, end);
  return std::move(cutter.boxes);
}

std::optional<TensorBox> intersection(const TensorBox& left, const TensorBox& right) {
  TensorBox common = left;
  for (size_t i = 0; i < left.sizes.size(); ++i) {
    const int64_t begin = std::max(left.offsets[i], right.offsets[i]);
    const int64_t end = std::min(left.offsets[i] + left.sizes[i], right.offsets[i] + right.sizes[i]);
    if (begin >= end) return std::nullopt;
    common.offsets[i] = begin;
    common.sizes[i] = end - begin;
  }
  return common;
}

bool contains(const TensorBox& box, const TensorBox& part) {
  if (part.sizes.size() != box.sizes.size()) return false;
  for (size_t i = 0; i < box.sizes.size(); ++i) {
    if (part.sizes[i] < 0 || part.offsets[i] < box.offsets[i]) return false;
    if (part.offsets[i] - box.offsets[i] > box.sizes[i] - part.sizes[i]) return false;
  }
  return true;
}

void copy_part(const TensorBox& part, const TensorBox& from, std::span<const std::byte> source,
               const TensorBox& into, std::span<std::byte> target, int64_t element_bytes) {
  if (part.elements() == 0) return;
  // The last dimensions, in which the part is as wide as both boxes, and the one before are one run of bytes.
  size_t outer = part.sizes.size();
  int64_t run = element_bytes;
  for (bool whole = true; whole && outer > 0; --outer) {
    const int64_t size = part.sizes[outer - 1];
    run *= size;
    whole = size == from.sizes[outer - 1] && size == into.sizes[outer - 1];
  }
  const auto place_in = [&](const TensorBox& box, const std::vector<int64_t>& index) {
    int64_t element = 0;
    for (size_t i = 0; i < box.sizes.size(); ++i)
      element = element * box.sizes[i] + index[i] - box.offsets[i];
    return static_cast<size_t>(element * element_bytes);
  };
  const auto bytes = static_cast<size_t>(run);
  std::vector<int64_t> index = part.offsets;
  while (true) {
    const auto read = source.subspan(place_in(from, index), bytes);
    std::memcpy(target.subspan(place_in(into, index), bytes).data(), read.data(), bytes);
    size_t dimension = outer;
    while (dimension > 0 &&
           ++index[dimension - 1] == part.offsets[dimension - 1] + part.sizes[dimension - 1]) {
      index[dimension - 1] = part.offsets[dimension - 1];
      --dimension;
    }
    if (dimension == 0) return;
  }
}

std::string box_text(const TensorBox& box) {
  std::vector<std::string> slices;
  for (size_t i = 0; i < box.sizes.size(); ++i) {
    slices.push_back(format("{}:{}", box.offsets[i], box.offsets[i] + box.sizes[i]));
  }
  return "[" + join(slices, ", ") + "]";
}

}  // namespace stepforge
