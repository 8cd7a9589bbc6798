// SPDX-License-Identifier: Apache-2.0
// What calls take and exchange, by which they are priced: elements, workspaces, and exchanges with other ranks; and what a block
// costs (call_cost.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stepforge/base/dtype.h"

namespace stepforge {

/// Elements per token, in the compute dtype and in fp32 (statistics).
struct Elements {
  int64_t compute = 0;
  int64_t fp32 = 0;
  /// The same, per token of this rank's slice (sequence parallelism).
  int64_t slice_compute = 0;
  int64_t slice_fp32 = 0;

  /// `slices`: ranks that have a slice of the tokens each.
  int64_t bytes(int64_t tokens, DType compute_dtype, int64_t slices = 1) const {
    const auto size = static_cast<int64_t>(dtype_bytes(compute_dtype));
    return tokens * (compute * size + fp32 * 4) + tokens / slices * (slice_compute * size + slice_fp32 * 4);
  }
  /// The same elements, but only for the tokens of the slice.
  Elements of_slice() const { return {0, 0, compute + slice_compute, fp32 + slice_fp32}; }
  bool operator==(const Elements&) const = default;
};

struct CostContext {
  int64_t tokens = 0;           ///< in one micro-batch
  int64_t document_length = 0;  ///< keys per token, before the causal mask
  DType compute = DType::f32;
  int64_t threads = 1;  ///< threads of a kernel, each with its own scratch memory
  int64_t parts = 1;    ///< ranks that have the other tokens of the same documents, this one included
  int64_t slices = 1;   ///< ranks that have a slice of the tokens each, between divided matrices
};

/// Memory that a call allocates and frees while it runs.
struct Workspace {
  Elements token;            ///< per token
  Elements chunk_token;      ///< per token of one chunk
  int64_t chunk = 0;         ///< tokens of a chunk, limited by those of the micro-batch
  int64_t fixed_fp32 = 0;    ///< fp32 elements, whatever the number of tokens
  int64_t narrow = 0;        ///< elements of the compute dtype, only if that is not fp32
  int64_t narrow_token = 0;  ///< the same, per token of at most kBf16ProductTokens; the larger of both
  int64_t thread_bytes = 0;  ///< of each running thread
  int64_t thread_bytes_per_key = 0;  ///< of each running thread, times document_length
  int64_t tasks_per_document = 1;    ///< limits the number of running threads; documents of all parts

  int64_t bytes(const CostContext& context) const;
};

/// The axes of the mesh over which the layers of a block may be divided: matrices over `tensor`, the tokens of
/// each row over `context` (keys) and `heads` (tokens for heads), the experts over `experts`.
enum class BlockAxis : uint8_t { tensor, context, heads, experts };
inline constexpr std::size_t kBlockAxes = 4;

/// "tensor", "context", "heads" or "experts"
std::string_view axis_name(BlockAxis axis);

enum class ExchangeKind : uint8_t {
  sum,         ///< all-reduce
  max,         ///< the largest values of all ranks, likewise
  gather,      ///< all-gather of slices
  sum_slice,   ///< reduce-scatter: the sum of this rank's slice
  slice,       ///< takes this rank's slice of what all have; nothing is sent
  all_to_all,  ///< tokens for heads, or back
  shift        ///< to the next rank, from the one before
};

/// "sum", "gather", ...
std::string_view exchange_name(ExchangeKind kind);

/// What a call exchanges with the ranks of one axis.
struct Exchange {
  BlockAxis axis = BlockAxis::tensor;
  ExchangeKind kind = ExchangeKind::sum;
  Elements elements = {};    ///< per token
  int64_t weight_bytes = 0;  ///< of gradients of weights, in backward
  bool beside = false;       ///< made piece by piece while the call computes
  bool constant = false;     ///< weight_bytes are of what has no gradient, such as the norms of weights

  bool operator==(const Exchange&) const = default;
};

/// What a call does with values that the ranks of an axis share: its rule in value_types.h.
enum class TypeRule : uint8_t {
  elementwise,  ///< of each token and channel for itself, or channels of one token or head: norms, activations
  lookup,       ///< rows of its weight, by token
  linear,       ///< by its weight [out, in]
  linear_add,   ///< the same of its first operand, added to the second
  attention,    ///< of each token to others of its row, head by head
  loss,         ///< logits by its weight [vocabulary, in], and their loss
  exchange      ///< nothing but its exchanges: of its input in forward, of the gradient in backward
};

/// The bytes and FLOPs of one call of a block on one micro-batch.
struct BlockCost {
  /// Kept from forward to backward, without the inputs of the block. Of its outputs those that its calls save.
  int64_t saved_bytes = 0;
  int64_t output_bytes = 0;  ///< of its results
  /// Peak of the bytes in flight during forward, without its inputs and including its output.
  int64_t forward_peak_bytes = 0;
  int64_t inference_peak_bytes = 0;  ///< the same without a graph
  /// Peak of the bytes in flight during backward, without inputs, saved bytes and incoming gradients.
  int64_t backward_peak_bytes = 0;
  /// The same if weight gradients are queued (nn/gradient_queue.h), with what the queue has allocated.
  int64_t backward_input_peak_bytes = 0;
  /// Peak of the bytes that the run of the queue allocates, less those that it has freed before.
  int64_t backward_weight_peak_bytes = 0;
  /// What the queue keeps from the backward of inputs to that of weights: inputs of linear calls (also if that is the
  /// block's), the gradients of their results (that of the block's result may be one of them), and the gradients of norms.
  int64_t queued_bytes = 0;
  /// Of queued_bytes those that are saved_bytes, too: the others of saved_bytes are free after the backward
  /// of inputs.
  int64_t queued_saved_bytes = 0;
  double forward_flops = 0;
  double backward_flops = 0;                              ///< the sum of the next two
  double backward_input_flops = 0;                        ///< with recomputation
  double backward_weight_flops = 0;                       ///< of products that a queue can put off
  std::array<int64_t, kBlockAxes> forward_exchange = {};  ///< bytes, with the ranks of each axis
  std::array<int64_t, kBlockAxes> backward_exchange = {};
  int64_t forward_beside = 0;  ///< of these bytes, those of exchanges made while the calls compute
  int64_t backward_beside = 0;
};

}  // namespace stepforge
