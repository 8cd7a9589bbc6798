// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t product(const std::vector<int64_t>& shape, size_t first, size_t last) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(first),
                         shape.begin() + static_cast<std::ptrdiff_t>(last), int64_t{1}, std::multiplies<>());
}

}  // namespace

FlatLayout flat_layout(const UnitSpec& unit) {
  FlatLayout layout;
  layout.offsets.reserve(unit.parameters.size());
  int64_t end = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    const int64_t offset = round_up(end, kTensorAlignment);
    layout.offsets.push_back(offset);
    end = offset + parameter.elements();
  }
  layout.size = round_up(end, kUnitAlignment);
  return layout;
}

std::string partition_text(const Partition& partition) {
  switch (partition.kind) {
    case PartitionKind::flat:
      return "flat";
    case PartitionKind::by_tensor:
      return "by_tensor";
    case PartitionKind::by_dim:
      return format("by_dim({})", partition.dimension);
  }
  throw Error("unknown partition");
}

std::vector<ShardSlice> slice_range(const ShardSlice& slice, int64_t begin, int64_t end) {
  std::vector<ShardSlice> parts;
  int64_t local = slice.local + begin;
  for (TensorSlice& part : slices_of_range(slice.slice, begin, end)) {
    const int64_t elements = part.elements();
    parts.push_back({std::move(part), local});
    local += elements;
  }
  return parts;
}

ShardLayout::ShardLayout(const UnitSpec& unit, const Partition& partition, int shards)
    : partition_(partition), shards_(shards) {
  if (shards < 1) throw UsageError(format("unit {} cannot be split into {} shards", unit.name, shards));
  if (shards == 1) partition_ = {};
  gathered_ = flat_layout(unit);
  for (const ParameterSpec& parameter : unit.parameters)
    tensors_.push_back({.shape = parameter.shape, .elements = parameter.elements()});
  switch (partition_.kind) {
    case PartitionKind::flat:
      place_flat();
      break;
    case PartitionKind::by_tensor:
      place_by_tensor();
      break;
    case PartitionKind::by_dim:
      place_by_dim();
      break;
  }
}

void ShardLayout::place_flat() {
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].start = gathered_.offsets[i];
  shard_size_ = round_up((gathered_.size + shards_ - 1) / shards_, kUnitAlignment);
  gathered_.size = joined_size();
}

void ShardLayout::place_by_tensor() {
  std::vector<size_t> largest_first(tensors_.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [this](size_t a, size_t b) { return tensors_[a].elements > tensors_[b].elements; });
  std::vector<int64_t> loads(static_cast<size_t>(shards_), 0);
  for (const size_t i : largest_first) {
    const auto least = std::min_element(loads.begin(), loads.end());
    tensors_[i].owner = static_cast<int>(least - loads.begin());
    *least += round_up(tensors_[i].elements, kTensorAlignment);
  }
  std::vector<int64_t> ends(static_cast<size_t>(shards_), 0);
  for (Tensor& tensor : tensors_) {
    int64_t& end = ends[static_cast<size_t>(tensor.owner)];
    tensor.start = end;
    end += round_up(tensor.elements, kTensorAlignment);
  }
  shard_size_ = round_up(*std::max_element(loads.begin(), loads.end()), kUnitAlignment);
  for (size_t i = 0; i < tensors_.size(); ++i)
    gathered_.offsets[i] = tensors_[i].owner * shard_size_ + tensors_[i].start;
  gathered_.size = joined_size();
}

void ShardLayout::place_by_dim() {
  int64_t end = 0;
  for (Tensor& tensor : tensors_) {
    const auto dimensions = static_cast<int64_t>(tensor.shape.size());
    const int64_t wanted =
        partition_.dimension < 0 ? partition_.dimension + dimensions : partition_.dimension;
    tensor.dimension = wanted >= 0 && wanted < dimensions ? static_cast<size_t>(wanted) : 0;
    const int64_t rows = tensor.rows();
    tensor.rows_per_rank = (rows + shards_ - 1) / shards_;
    tensor.start = end;
    const int64_t row = rows == 0 ? 0 : tensor.elements / rows;
    end += round_up(tensor.rows_per_rank * row, kTensorAlignment);
  }
  shard_size_ = round_up(end, kUnitAlignment);
}

ShardRange ShardLayout::dim_range(int rank, const Tensor& tensor) const {
  const int64_t rows = tensor.rows();
  const int64_t begin = std::min(rank * tensor.rows_per_rank, rows);
  return {begin, std::min(begin + tensor.rows_per_rank, rows)};
}

ShardRange ShardLayout::local_range_of(int rank, const Tensor& tensor) const {
  switch (partition_.kind) {
    case PartitionKind::flat: {
      const int64_t first = rank * shard_size_;
      const int64_t begin = std::clamp(tensor.start - first, int64_t{0}, shard_size_);
      return {begin, std::clamp(tensor.start + tensor.elements - first, begin, shard_size_)};
    }
    case PartitionKind::by_tensor:
      return {tensor.start, tensor.start + (rank == tensor.owner ? tensor.elements : 0)};
    case PartitionKind::by_dim: {
      const int64_t rows = tensor.rows();
      const int64_t elements = rows == 0 ? 0 : dim_range(rank, tensor).size() * (tensor.elements / rows);
      return {tensor.start, tensor.start + elements};
    }
  }
  throw Error("unknown partition");
}

ShardRange ShardLayout::local_range(int rank, size_t first, size_t last) const {
  ShardRange range;
  for (size_t i = first; i < last; ++i) {
    const ShardRange part = local_range_of(rank, tensors_.at(i));
    if (part.size() == 0) continue;
    if (range.size() == 0) range.begin = part.begin;
    range.end = part.end;
  }
  return range;
}

std::vector<ShardSlice> ShardLayout::slices(int rank, size_t parameter) const {
  const Tensor& tensor = tensors_.at(parameter);
  return slices(rank, parameter, 0, tensor.shape.empty() ? 1 : tensor.shape[0]);
}

std::vector<ShardSlice> ShardLayout::slices(int rank, size_t parameter, int64_t begin, int64_t end) const {
  const Tensor& tensor = tensors_.at(parameter);
  const ShardRange held = local_range_of(rank, tensor);
  if (held.size() == 0 || begin >= end) return {};
  if (tensor.shape.empty()) return {{whole_slice({}), held.begin}};
  std::vector<int64_t> shape = tensor.shape;
  shape[0] = end - begin;
  const int64_t row = tensor.elements / tensor.shape[0];
  if (partition_.kind == PartitionKind::by_dim) return slices_by_dim(rank, tensor, shape, begin);
  // The part on this rank is one interval of the elements of the tensor.
  const int64_t first =
      partition_.kind == PartitionKind::flat ? held.begin + rank * shard_size_ - tensor.start : 0;
  const int64_t from = std::max(first, begin * row);
  const int64_t to = std::min(first + held.size(), end * row);
  if (from >= to) return {};
  const ShardSlice rows{whole_slice(shape), held.begin + begin * row - first};  // may start before the shard
  return slice_range(rows, from - begin * row, to - begin * row);
}

std::vector<ShardSlice> ShardLayout::slices_by_dim(int rank, const Tensor& tensor,
                                                   const std::vector<int64_t>& shape,
                                                   int64_t first_row) const {
  const ShardRange rows = dim_range(rank, tensor);
  ShardSlice held{whole_slice(shape), tensor.start};
  if (tensor.dimension > 0) {
    held.slice.offsets[tensor.dimension] = rows.begin;
    held.slice.sizes[tensor.dimension] = rows.size();
    held.local += first_row * (held.elements() / shape[0]);
    return {held};
  }
  const int64_t from = std::max(rows.begin, first_row);
  const int64_t to = std::min(rows.end, first_row + shape[0]);
  if (from >= to) return {};
  held.slice.offsets[0] = from - first_row;
  held.slice.sizes[0] = to - from;
  held.local += (from - rows.begin) * (held.elements() / held.slice.sizes[0]);
  return {held};
}

std::vector<ShardRun> runs_of(const std::vector<int64_t>& shape, const ShardSlice& slice) {
  if (slice.elements() == 0) return {};
  const auto& [offsets, sizes] = slice.slice;
  // Dimensions after the last one that the slice narrows are whole, so a run spans them.
  size_t narrowed = shape.size();
  while (narrowed > 0 && sizes[narrowed - 1] == shape[narrowed - 1]) --narrowed;
  const size_t depth = narrowed == 0 ? 0 : narrowed - 1;
  const int64_t count = product(sizes, depth, shape.size());
  std::vector<int64_t> position = offsets;
  std::vector<ShardRun> runs;
  for (int64_t run = 0; run < product(sizes, 0, depth); ++run) {
    int64_t element = 0;
    for (size_t d = 0; d < shape.size(); ++d) element = element * shape[d] + position[d];
    runs.push_back({element, slice.local + run * count, count});
    for (size_t d = depth; d-- > 0;) {
      if (++position[d] < offsets[d] + sizes[d]) break;
      position[d] = offsets[d];
    }
  }
  return runs;
}

}  // namespace stepforge
