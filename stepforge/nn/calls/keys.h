// SPDX-License-Identifier: Apache-2.0
// Attention whose keys pass between the ranks that have the other tokens of each row.
#pragma once

#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/nn/attention_sinks.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

/// Throws Error unless the batch has the part of its rows for which the model was made.
void check_parts(const BatchTensors& batch, const ContextParallel& parallel);

/// The sinks of the heads that attend here.
AttentionSinks sinks_of(const CallRun& run);

/// Columns of the keys, and of the values.
inline int64_t key_width(const AttentionShape& shape) {
  return shape.kv_heads * shape.head_dim;
}

/// A copy of the keys and values of qkv: [N, 2 width].
inline at::Tensor own_keys(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.narrow(1, shape.out_width(), 2 * key_width(shape)).clone(at::MemoryFormat::Contiguous);
}

/// The queries of qkv with the keys and values of kv [*, 2 width].
inline QueryKeyValue with_keys(const at::Tensor& qkv, const at::Tensor& kv, const AttentionShape& shape) {
  const int64_t width = key_width(shape);
  return {qkv.narrow(1, 0, shape.out_width()), kv.narrow(1, 0, width), kv.narrow(1, width, width)};
}

/// Keys and values of whole rows are gathered, in backward once more, so that a rank keeps only its own.
void attend_gathered(const CallRun& run);
void attend_gathered_backward(const CallRun& run);

/// They pass from rank to rank.
void attend_ring(const CallRun& run);
void attend_ring_backward(const CallRun& run);

}  // namespace stepforge
