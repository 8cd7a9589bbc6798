// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/tensor_slice.h"

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

/// Splits a range of a slice's elements into slices, from the outermost dimension inwards. A row is one index
/// of a dimension with all of the later dimensions.
class RangeSplitter {
 public:
  explicit RangeSplitter(const TensorSlice& slice) : whole_(slice), index_(slice.offsets) {}

  /// Adds elements [begin, end) of the part whose indices before `dimension` are those of index_.
  void split(size_t dimension, int64_t begin, int64_t end) {
    if (begin == end) return;
    if (dimension == whole_.sizes.size()) return add(dimension, 1);
    const int64_t row_elements = product(std::span(whole_.sizes).subspan(dimension + 1));
    if (begin % row_elements != 0) {
      const int64_t stop = std::min(end, (begin / row_elements + 1) * row_elements);
      split_row(dimension, begin, stop);
      begin = stop;
    }
    if (const int64_t full = (end - begin) / row_elements; full > 0) {
      index_[dimension] = whole_.offsets[dimension] + begin / row_elements;
      add(dimension, full);
      begin += full * row_elements;
    }
    if (begin < end) split_row(dimension, begin, end);
  }

  std::vector<TensorSlice> slices;

 private:
  /// A part of one row.
  void split_row(size_t dimension, int64_t begin, int64_t end) {
    const int64_t row_elements = product(std::span(whole_.sizes).subspan(dimension + 1));
    index_[dimension] = whole_.offsets[dimension] + begin / row_elements;
    split(dimension + 1, begin % row_elements, end - begin / row_elements * row_elements);
  }

  /// Adds `rows` whole rows, starting at index_.
  void add(size_t dimension, int64_t rows) {
    TensorSlice part = {index_, whole_.sizes};
    for (size_t i = 0; i < dimension; ++i) part.sizes[i] = 1;
    if (dimension < part.sizes.size()) part.sizes[dimension] = rows;
    for (size_t i = dimension + 1; i < part.sizes.size(); ++i) part.offsets[i] = whole_.offsets[i];
    slices.push_back(std::move(part));
  }

  const TensorSlice& whole_;
  std::vector<int64_t> index_;
};

}  // namespace

int64_t TensorSlice::elements() const {
  return product(sizes);
}

TensorSlice whole_slice(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

std::vector<TensorSlice> slices_of_range(const TensorSlice& slice, int64_t begin, int64_t end) {
  RangeSplitter splitter(slice);
  splitter.split(0, begin, end);
  return std::move(splitter.slices);
}

TensorSlice moved(TensorSlice part, const std::vector<int64_t>& offsets) {
  for (size_t d = 0; d < part.offsets.size(); ++d) part.offsets[d] += offsets.at(d);
  return part;
}

std::optional<TensorSlice> intersection(const TensorSlice& left, const TensorSlice& right) {
  TensorSlice common = left;
  for (size_t i = 0; i < left.sizes.size(); ++i) {
    const int64_t begin = std::max(left.offsets[i], right.offsets[i]);
    const int64_t end = std::min(left.offsets[i] + left.sizes[i], right.offsets[i] + right.sizes[i]);
    if (begin >= end) return std::nullopt;
    common.offsets[i] = begin;
    common.sizes[i] = end - begin;
  }
  return common;
}

bool contains(const TensorSlice& slice, const TensorSlice& part) {
  if (part.sizes.size() != slice.sizes.size()) return false;
  for (size_t i = 0; i < slice.sizes.size(); ++i) {
    if (part.sizes[i] < 0 || part.offsets[i] < slice.offsets[i]) return false;
    if (part.offsets[i] - slice.offsets[i] > slice.sizes[i] - part.sizes[i]) return false;
  }
  return true;
}

void copy_part(const TensorSlice& part, const TensorSlice& from, const ByteSource& source,
               const TensorSlice& into, std::span<std::byte> target, int64_t element_bytes) {
  if (part.elements() == 0) return;
  // A run of contiguous bytes covers the trailing dimensions in which the part is as wide as both slices, and
  // the dimension before them.
  size_t outer = part.sizes.size();
  int64_t run = element_bytes;
  for (bool whole = true; whole && outer > 0; --outer) {
    const int64_t size = part.sizes[outer - 1];
    run *= size;
    whole = size == from.sizes[outer - 1] && size == into.sizes[outer - 1];
  }
  const auto byte_offset = [&](const TensorSlice& slice, const std::vector<int64_t>& index) {
    int64_t element = 0;
    for (size_t i = 0; i < slice.sizes.size(); ++i)
      element = element * slice.sizes[i] + index[i] - slice.offsets[i];
    return static_cast<size_t>(element * element_bytes);
  };
  const auto bytes = static_cast<size_t>(run);
  std::vector<int64_t> index = part.offsets;
  while (true) {
    source(static_cast<int64_t>(byte_offset(from, index)), target.subspan(byte_offset(into, index), bytes));
    size_t dimension = outer;
    while (dimension > 0 &&
           ++index[dimension - 1] == part.offsets[dimension - 1] + part.sizes[dimension - 1]) {
      index[dimension - 1] = part.offsets[dimension - 1];
      --dimension;
    }
    if (dimension == 0) return;
  }
}

void copy_part(const TensorSlice& part, const TensorSlice& from, std::span<const std::byte> source,
               const TensorSlice& into, std::span<std::byte> target, int64_t element_bytes) {
  const auto copy = [source](int64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), source.subspan(static_cast<size_t>(offset), out.size()).data(), out.size());
  };
  copy_part(part, from, copy, into, target, element_bytes);
}

std::string slice_text(const TensorSlice& slice) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < slice.sizes.size(); ++i) {
    ranges.push_back(format("{}:{}", slice.offsets[i], slice.offsets[i] + slice.sizes[i]));
  }
  return "[" + join(ranges, ", ") + "]";
}

}  // namespace stepforge
