// SPDX-License-Identifier: Apache-2.0
// The arrangement of a job's ranks: the degree of each kind of parallelism, and the groups along each axis.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

/// One rank of a job.
struct RankId {
  int rank = 0;
  int world_size = 1;
};

/// The degree of each axis. One of dp_replicate, dp_shard, cp, tp and pp may be -1: the remaining ranks. `ep`, `etp` and
/// `cp_heads` are not factors of the world size: experts are spread over ranks of the axes dp_shard, cp and tp, and each is
/// divided over etp neighbours; groups of cp_heads neighbours along cp exchange heads of attention.
struct ParallelDims {
  int64_t dp_replicate = 1;
  int64_t dp_shard = -1;
  int64_t cp = 1;
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t ep = 1;
  int64_t cp_heads = 1;
  int64_t etp = 1;

  bool operator==(const ParallelDims&) const = default;
};

/// "dp_replicate 2 x dp_shard -1 x cp 1 x tp 1 x pp 1, ep 1"
std::string dims_text(const ParallelDims& dims);

/// The axes with several ranks: "dp_replicate 2 x cp 4", "dp_shard 4, ep 2"; "1 rank" if there is none.
std::string mesh_text(const ParallelDims& dims);

/// Replaces the -1. Throws UsageError, which lists all degrees,
/// - if a degree is neither positive nor the only -1,
/// - if dp_replicate x dp_shard x cp x tp x pp is not the world size, or
/// - if etp is neither 1 nor tp, ep x etp does not divide dp_shard x cp x tp, or cp_heads not cp.
ParallelDims resolve_dims(ParallelDims dims, int world_size);

/// All ranks as a grid: pp outermost, then dp_replicate, dp_shard, cp, and tp innermost. Axes of size 1
/// exist. Further axes:
///   dp, batch  dp_replicate x dp_shard: ranks that read different rows
///   loss       dp_replicate x dp_shard x cp: ranks over which a loss is summed
///   fsdp       dp_shard x cp: ranks among which dense parameters are sharded
///   fsdp_tp    dp_shard x cp x tp: ranks among which dense parameters that work on slices of the tokens are sharded
///   cp_heads   neighbours along cp that exchange heads
///   cp_ring    cp / cp_heads: the ranks with the same place in these groups
///   ep         the innermost ep x etp ranks of dp_shard x cp x tp: ranks that hold different experts, or parts of them
///   efsdp      dp_shard x cp x tp / (ep x etp): ranks among which one expert, or its part, is sharded
///   stage      dp_replicate x dp_shard x cp x tp: ranks that have the same layers
///   world      all ranks
/// Every function throws Error for an unknown axis or a rank outside the world.
class Mesh {
 public:
  /// `resolved` comes from resolve_dims for this world size; throws UsageError as resolve_dims does.
  Mesh(ParallelDims resolved, int world_size);

  /// `rank` and the ranks that differ from it in this axis only, ascending.
  std::vector<int> group(std::string_view axis, int rank) const;
  /// The first rank of that group.
  int first(std::string_view axis, int rank) const;
  int size(std::string_view axis) const;
  /// The index of `rank` in its group.
  int coordinate(std::string_view axis, int rank) const;

  const ParallelDims& dims() const { return dims_; }
  int world_size() const { return world_size_; }

 private:
  /// The ranks of a group are `stride` apart.
  struct Axis {
    int size = 1;
    int stride = 1;
  };
  Axis axis(std::string_view name) const;
  void check_rank(int rank) const;

  ParallelDims dims_;
  int world_size_ = 1;
};

}  // namespace stepforge
