// SPDX-License-Identifier: Apache-2.0
// The part of a unit that is reduced while some of its parameters are frozen: the others only.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

/// The elements of trained parameters in the shards of a unit, packed. Equally many on all ranks: a rank that
/// holds fewer appends zeros.
class TrainedParts {
 public:
  /// All parameters are trained: packing changes nothing.
  explicit TrainedParts(const ShardLayout& layout);
  /// `trained`: per parameter of the unit, the same on all ranks.
  TrainedParts(const ShardLayout& layout, const std::vector<bool>& trained);

  int64_t size() const { return size_; }  ///< elements per rank

  /// [shards * size()] from the joined shards.
  at::Tensor pack_joined(const at::Tensor& joined) const;
  /// [size()] from a rank's shard.
  at::Tensor pack_shard(const at::Tensor& shard, int rank) const;
  /// [shard_size] with zeros where parameters are frozen.
  at::Tensor unpack(const at::Tensor& parts, int rank) const;

 private:
  void pack(const at::Tensor& shard, int rank, const at::Tensor& parts) const;

  int64_t shard_size_;
  int64_t size_;
  std::vector<std::vector<ShardRange>> ranges_;  ///< of each rank; none if all are trained
};

}  // namespace stepforge
