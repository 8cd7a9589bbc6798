// What a reduction carries of a unit some of whose parameters are frozen now: the others only.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

/// The elements of trained parameters in the shards of a unit, side by side. All ranks get equally many;
/// where a rank holds fewer, zeros follow.
class TrainedParts {
 public:
  /// All of them are trained; packing is nothing then.
  explicit TrainedParts(const ShardLayout& layout);
  /// `trained`: of each parameter of the unit, the same on all ranks.
  TrainedParts(const ShardLayout& layout, const std::vector<bool>& trained);

  int64_t size() const { return size_; }  ///< elements of each rank

  /// [shards * size()] of the shards joined.
  at::Tensor of_joined(const at::Tensor& joined) const;
  /// [size()] of a rank's shard.
  at::Tensor of_shard(const at::Tensor& shard, int rank) const;
  /// [shard_size] with zeros where parameters are frozen.
  at::Tensor to_shard(const at::Tensor& parts, int rank) const;

 private:
  void pack(const at::Tensor& shard, int rank, const at::Tensor& parts) const;

  int64_t shard_size_;
  int64_t size_;
  std::vector<std::vector<ShardRange>> ranges_;  ///< of each rank; none if all are trained
};

}  // namespace stepforge
