// SPDX-License-Identifier: Apache-2.0
// Where the parameters of a unit lie in its flat buffers: masters, gradients, optimizer slots, gathered
// copies. And which part of each lies on which rank, if ranks share the unit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/modelspec/parameter.h"

namespace stepforge {

/// Every tensor starts at a multiple of this many elements, so of 256 bytes even in a one-byte dtype.
inline constexpr int64_t kTensorAlignment = 256;

/// A unit ends at a multiple of this many elements: the chunks over which ordered norms are summed and at
/// which shards are cut.
inline constexpr int64_t kUnitBorder = 1024;

/// Offsets are in elements, so that the same layout serves every dtype. What lies between tensors is padding:
/// zero.
struct FlatLayout {
  std::vector<int64_t> offsets;  ///< of each parameter, in the order of UnitSpec::parameters
  int64_t size = 0;              ///< of the whole unit, padding included
};

/// The unit on one rank, parameter after parameter; its size is a multiple of kUnitBorder.
FlatLayout flat_layout(const UnitSpec& unit);

/// How the elements of a unit are partitioned over the ranks of its shard group.
struct Partition {
  enum class Kind : uint8_t {
    flat,       ///< equal intervals of the flat unit; borders may fall inside a tensor
    by_tensor,  ///< each tensor lies on one rank: the largest first, on the rank that has least
    by_dim,     ///< every tensor is cut along one dimension, rounded up to whole slices
  };
  Kind kind = Kind::flat;
  /// Of by_dim; negative dimensions count from the last. A tensor that has fewer is cut along dimension 0.
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

/// A slice of a tensor whose elements follow one another, row-major, from `local` on in a rank's shard: of
/// the masters and of every buffer that is cut alike.
struct ShardSlice {
  TensorSlice slice;
  int64_t local = 0;

  int64_t elements() const { return slice.elements(); }
  bool operator==(const ShardSlice&) const = default;
};

/// Elements [begin, end) of a held slice, row-major, as slices in their order.
std::vector<ShardSlice> slice_range(const ShardSlice& held, int64_t begin, int64_t end);

/// A unit partitioned over ranks: equal shards of `shard_size` elements, in each of which the parts of
/// parameters lie in the parameters' order. One rank alone holds the unit as in flat_layout().
class ShardLayout {
 public:
  /// Throws UsageError for fewer than one shard.
  ShardLayout(const UnitSpec& unit, const Partition& partition, int shards);

  const Partition& partition() const { return partition_; }
  int shards() const { return shards_; }
  int64_t shard_size() const { return shard_size_; }             ///< a multiple of kUnitBorder
  int64_t joined_size() const { return shards_ * shard_size_; }  ///< all shards one after the other

  /// Where tensors lie in a gathered copy, each whole and without gaps.
  const FlatLayout& gathered() const { return gathered_; }
  /// Whether the shards joined are the gathered copy. With by_dim, slices must be copied to their
  /// places, and back before a reduction.
  bool joined_is_gathered() const { return partition_.kind != Partition::Kind::by_dim; }

  /// What `rank` holds of parameters [first, last), with the padding between them; perhaps empty.
  ShardRange local_range(int rank, size_t first, size_t last) const;
  /// What `rank` holds of rows [begin, end) (of dimension 0) of a parameter, as slices of the tensor that
  /// these rows are. They are in the order of their elements in the shard; an interval whose borders fall
  /// inside a row makes several.
  std::vector<ShardSlice> slices(int rank, size_t parameter, int64_t begin, int64_t end) const;
  /// Of the whole parameter.
  std::vector<ShardSlice> slices(int rank, size_t parameter) const;

 private:
  struct Tensor {
    std::vector<int64_t> shape;  ///< empty for a scalar
    int64_t elements = 0;
    int64_t start = 0;      ///< flat: in the joined shards; else in the shard of every rank that holds a part
    int owner = 0;          ///< by_tensor: its rank
    size_t dimension = 0;   ///< by_dim: along which it is cut
    int64_t thickness = 0;  ///< by_dim: of each rank's slice; the last ones may be thinner

    int64_t rows() const { return shape.empty() ? 1 : shape[dimension]; }  ///< along `dimension`
  };

  void place_flat();
  void place_by_tensor();
  void place_by_dim();
  /// The rows of tensor.dimension that `rank` holds.
  ShardRange dim_range(int rank, const Tensor& tensor) const;
  ShardRange local_range_of(int rank, const Tensor& tensor) const;
  /// slices() of by_dim; `shape` is that of the wanted rows, which begin at `first_row`.
  std::vector<ShardSlice> slices_by_dim(int rank, const Tensor& tensor, const std::vector<int64_t>& shape,
                                        int64_t first_row) const;

  Partition partition_;
  int shards_;
  int64_t shard_size_ = 0;
  FlatLayout gathered_;
  std::vector<Tensor> tensors_;
};

/// Elements that lie side by side in a tensor of some shape and in the shard.
struct ShardRun {
  int64_t element = 0;  ///< of the tensor
  int64_t local = 0;    ///< of the shard
  int64_t count = 0;
};

/// The slice of a tensor of that shape as runs, in order.
std::vector<ShardRun> runs_of(const std::vector<int64_t>& shape, const ShardSlice& held);

}  // namespace stepforge
