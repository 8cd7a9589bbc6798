// SPDX-License-Identifier: Apache-2.0
// The layout of the parameters of a unit in its flat buffers (masters, gradients, optimizer slots, gathered
// copies), and its partition over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/choices.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/modelspec/parameter.h"

namespace stepforge {

/// Every tensor starts at a multiple of this number of elements, and so at a multiple of 256 bytes in every
/// dtype.
inline constexpr int64_t kTensorAlignment = 256;

/// The sizes of units and shards are multiples of this number of elements, so that a shard consists of whole
/// chunks of the norm in ordered mode.
inline constexpr int64_t kUnitAlignment = 1024;

/// Offsets are in elements, so that the layout is the same for every dtype. The padding between tensors is
/// zero.
struct FlatLayout {
  std::vector<int64_t> offsets;  ///< of each parameter, in the order of UnitSpec::parameters
  int64_t size = 0;              ///< of the whole unit, padding included
};

/// The unit on one rank, parameter after parameter; its size is a multiple of kUnitAlignment.
FlatLayout flat_layout(const UnitSpec& unit);

/// How the elements of a unit are partitioned over the ranks of its shard group.
struct Partition {
  PartitionKind kind = PartitionKind::flat;
  /// For by_dim. Negative dimensions count from the end. A tensor without this dimension is split along
  /// dimension 0.
  int64_t dimension = 0;

  bool operator==(const Partition&) const = default;
};

/// "flat", "by_tensor", "by_dim(1)"
std::string partition_text(const Partition& partition);

/// Elements [begin, end) of a shard.
struct ShardRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const ShardRange&) const = default;
};

/// A slice of a tensor, stored contiguously in row-major order in the shard of a rank, from element `local`
/// on.
struct ShardSlice {
  TensorSlice slice;
  int64_t local = 0;

  int64_t elements() const { return slice.elements(); }
  bool operator==(const ShardSlice&) const = default;
};

/// Elements [begin, end) of a slice, in row-major order, as slices.
std::vector<ShardSlice> slice_range(const ShardSlice& slice, int64_t begin, int64_t end);

/// A unit partitioned over ranks: equal shards of `shard_size` elements, each with its parts of the
/// parameters in their order. A single shard is the unit as in flat_layout().
class ShardLayout {
 public:
  /// Throws UsageError for fewer than one shard.
  ShardLayout(const UnitSpec& unit, const Partition& partition, int shards);

  const Partition& partition() const { return partition_; }
  int shards() const { return shards_; }
  int64_t shard_size() const { return shard_size_; }             ///< a multiple of kUnitAlignment
  int64_t joined_size() const { return shards_ * shard_size_; }  ///< of all shards

  /// The layout of whole tensors in a gathered copy.
  const FlatLayout& gathered() const { return gathered_; }
  /// Whether the concatenated shards are the gathered copy. With by_dim, slices must be copied to their
  /// offsets, and back before a reduction.
  bool joined_is_gathered() const { return partition_.kind != PartitionKind::by_dim; }

  /// The part of parameters [first, last) on `rank`, with the padding between them. May be empty.
  ShardRange local_range(int rank, size_t first, size_t last) const;
  /// The part of rows [begin, end) (of dimension 0) of a parameter on `rank`, as slices of the tensor that
  /// consists of these rows, in the order of the shard. With flat, an interval that starts or ends inside a
  /// row gives several slices.
  std::vector<ShardSlice> slices(int rank, size_t parameter, int64_t begin, int64_t end) const;
  /// For the whole parameter.
  std::vector<ShardSlice> slices(int rank, size_t parameter) const;

 private:
  struct Tensor {
    std::vector<int64_t> shape;  ///< empty for a scalar
    int64_t elements = 0;
    int64_t start = 0;  ///< flat: in the concatenated shards; otherwise in the shard of each rank with a part
    int owner = 0;      ///< by_tensor: its rank
    size_t dimension = 0;       ///< by_dim: along which it is split
    int64_t rows_per_rank = 0;  ///< by_dim; the last ranks may have fewer

    int64_t rows() const { return shape.empty() ? 1 : shape[dimension]; }  ///< along `dimension`
  };

  void place_flat();
  void place_by_tensor();
  void place_by_dim();
  /// The rows of tensor.dimension that `rank` holds.
  ShardRange dim_range(int rank, const Tensor& tensor) const;
  ShardRange local_range_of(int rank, const Tensor& tensor) const;
  /// slices() for by_dim; `shape` is that of the requested rows, which begin at `first_row`.
  std::vector<ShardSlice> slices_by_dim(int rank, const Tensor& tensor, const std::vector<int64_t>& shape,
                                        int64_t first_row) const;

  Partition partition_;
  int shards_;
  int64_t shard_size_ = 0;
  FlatLayout gathered_;
  std::vector<Tensor> tensors_;
};

/// Elements that are contiguous both in a tensor and in the shard.
struct ShardRun {
  int64_t element = 0;  ///< offset of the first one in the tensor
  int64_t local = 0;    ///< offset of the first one in the shard
  int64_t count = 0;
};

/// A slice of a tensor of this shape as runs, in order.
std::vector<ShardRun> runs_of(const std::vector<int64_t>& shape, const ShardSlice& slice);

}  // namespace stepforge
