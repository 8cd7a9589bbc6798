// SPDX-License-Identifier: Apache-2.0
// What the methods of attention over parts of rows share. Not public.
#pragma once

#include "stepforge/nn/functions.h"

namespace stepforge {

struct ContextArguments {
  AttentionShape shape;
  const BatchTensors* batch = nullptr;
  const ContextExchange* exchange = nullptr;
  AttentionSinks sinks = {};  ///< not in a ring

  /// Ranks between which keys pass.
  int64_t degree() const { return exchange->parallel.across(); }
  /// Columns of the keys, and of the values.
  int64_t width() const { return shape.kv_heads * shape.head_dim; }
};

/// A copy of the keys and values of qkv: [N, 2 width].
inline at::Tensor own_keys(const at::Tensor& qkv, const ContextArguments& arguments) {
  return qkv.narrow(1, arguments.shape.out_width(), 2 * arguments.width())
      .clone(at::MemoryFormat::Contiguous);
}

/// The queries of qkv with the keys and values of kv [*, 2 width].
inline QueryKeyValue with_keys(const at::Tensor& qkv, const at::Tensor& kv,
                               const ContextArguments& arguments) {
  const int64_t width = arguments.width();
  return {qkv.narrow(1, 0, arguments.shape.out_width()), kv.narrow(1, 0, width), kv.narrow(1, width, width)};
}

/// attend_part() by the method ring.
at::Tensor attend_ring(const at::Tensor& qkv, const ContextArguments& arguments);

}  // namespace stepforge
