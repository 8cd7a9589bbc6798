// SPDX-License-Identifier: Apache-2.0
// The part of a unit that is reduced while some of its parameters are frozen.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

/// Packs the elements of trained parameters of each shard of a unit, padded with zeros to the same number on
/// all ranks.
class TrainedParts {
 public:
  /// All parameters are trained: packing and unpacking change nothing.
  explicit TrainedParts(const ShardLayout& layout);
  /// `trained`: per parameter of the unit, the same on all ranks.
  TrainedParts(const ShardLayout& layout, const std::vector<bool>& trained);

  int64_t size() const { return size_; }  ///< packed elements per rank

  /// `joined`: the shards of all ranks [shards * shard_size]. Returns [shards * size()].
  at::Tensor pack_joined(const at::Tensor& joined) const;
  /// `shard` [shard_size] of `rank`. Returns [size()].
  at::Tensor pack_shard(const at::Tensor& shard, int rank) const;
  /// `parts` [size()] of `rank`. Returns [shard_size] with zeros for frozen parameters.
  at::Tensor unpack(const at::Tensor& parts, int rank) const;

 private:
  void pack(const at::Tensor& shard, int rank, const at::Tensor& parts) const;

  int64_t shard_size_;
  int64_t size_;
  std::vector<std::vector<ShardRange>> ranges_;  ///< of each rank; none if all are trained
};

}  // namespace stepforge
