// SPDX-License-Identifier: Apache-2.0
// What layers cost, as data: FLOPs, bytes kept for backward, bytes in flight. Costs of blocks are sums over
// these descriptors; a test compares them with what autograd really saved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/dtype.h"

namespace stepforge {

/// Elements per token: of the compute dtype, and of fp32 (statistics).
struct Elements {
  int64_t compute = 0;
  int64_t fp32 = 0;

  int64_t bytes(int64_t tokens, DType compute_dtype) const {
    return tokens * (compute * static_cast<int64_t>(dtype_bytes(compute_dtype)) + fp32 * 4);
  }
  Elements operator+(const Elements& other) const { return {compute + other.compute, fp32 + other.fp32}; }
};

struct CostContext {
  int64_t tokens = 0;           ///< in one micro-batch
  int64_t document_length = 0;  ///< keys that a token may look at, before the causal mask
  DType compute = DType::f32;
  int64_t threads = 1;  ///< that kernels run on: each has scratch of its own
};

/// What a call allocates and frees while it runs.
struct Workspace {
  Elements token;                    ///< per token
  Elements chunk_token;              ///< per token of one chunk
  int64_t chunk = 0;                 ///< tokens of a chunk; there are never more than the micro-batch has
  int64_t narrow = 0;                ///< elements of the compute dtype, only where that is not fp32
  int64_t thread_bytes = 0;          ///< of each running thread
  int64_t thread_bytes_per_key = 0;  ///< of each running thread, times document_length
  int64_t tasks_per_document = 1;    ///< no more threads run than there are tasks

  int64_t bytes(const CostContext& context) const;
};

/// One layer call inside a block. Sizes are per token.
struct OpCost {
  std::string name;  ///< "rms_norm"
  double flops = 0;  ///< forward, per token, of matrix products
  /// Forward, per token and key of its document: attention without a causal discount.
  double flops_per_key = 0;
  Elements output;  ///< allocated for the result; lives until its region returns, or longer if saved
  Elements extra;   ///< allocated beside the result and kept for backward: statistics
  Elements saves;   ///< freed when this call's backward is done: its saved inputs, results, statistics
  Workspace forward_workspace;   ///< allocated and freed during the forward
  Elements gradient;             ///< allocated by its backward for its input's gradient; none: in place
  Workspace backward_workspace;  ///< allocated and freed during the backward
};

/// A named part of a block ("attention", "mlp"), which a pass saves or recomputes as a whole.
struct RegionCost {
  std::string name;
  std::vector<OpCost> ops;
  /// Its input is added to its result, so the incoming gradient lives until the end of its backward.
  bool residual = false;
};

/// The bytes and FLOPs of one call of a block on one micro-batch.
struct BlockCost {
  /// Kept by autograd from forward to backward, without the block's inputs and outputs.
  int64_t saved_bytes = 0;
  int64_t output_bytes = 0;  ///< of the last region's result
  /// Most bytes in flight during forward, above its inputs and including its output.
  int64_t forward_peak_bytes = 0;
  int64_t inference_peak_bytes = 0;  ///< the same when no graph is kept
  /// Most bytes in flight during backward, above inputs, saved bytes and incoming gradients.
  int64_t backward_peak_bytes = 0;
  double forward_flops = 0;
  double backward_flops = 0;
};

/// Adds up the regions of a block. `recomputed` names regions that keep only their input and run again in
/// backward.
///
/// Forward walks the regions in order. Inside a region every call's output and extra stay until the region
/// returns; then its `saves` stay and, until the next region has returned, its result. (A result that is
/// saved as the next region's input is counted by that region's `saves`; a region must not save its own
/// result.) A recomputed region saves nothing; its input stays instead, unless that is the block's own
/// input. Without a graph nothing is saved, and `extra` lives only during its call.
///
/// Backward walks regions and calls in reverse and counts from 0 when it begins. A call allocates `gradient`
/// and, while it runs, `backward_workspace`; then its `saves` and the gradient that came into it are freed. A
/// call without a `gradient` works in place and passes the incoming one on. In a residual region the
/// gradient that came into the region stays to its end and is then added into the branch's. The gradient
/// that came into the block is its caller's and stays. A recomputed region first runs forward again, its
/// `saves` come back, and its result and the gradient that came into it stay to its end.
///
/// backward_flops is twice the forward, and once more for what is recomputed.
BlockCost block_cost(const std::vector<RegionCost>& regions, const CostContext& context,
                     const std::vector<std::string>& recomputed = {});

}  // namespace stepforge
