// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/context_costs.h"

#include <algorithm>

#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge {

namespace {

/// Every rank gathers the keys and values of whole rows, in forward and again in backward.
void gather_keys(RegionCost& region, const AttentionDims& dims, int64_t degree) {
  const int64_t gathered = degree * 2 * dims.kv_heads * dims.head_dim;
  OpCost& attention = region.ops.back();
  attention.forward_workspace.token.compute = gathered;
  attention.forward_workspace.token.fp32 *= degree;
  attention.backward_workspace.token.compute = 2 * gathered;  // and their gradients
  Exchange& exchange = region.exchange(BlockAxis::context);
  exchange.forward.compute = gathered;
  exchange.backward.compute = 2 * gathered;
}

/// Keys and values of every rank pass through this one, and their gradients in fp32 behind them.
void pass_keys(RegionCost& region, const AttentionDims& dims, int64_t degree) {
  const int64_t keys = 2 * dims.kv_heads * dims.head_dim;
  OpCost& attention = region.ops.back();
  // Two sets of keys; the results of one step beside those of all, in fp32.
  attention.forward_workspace.token.compute = 2 * keys + dims.query_width();
  attention.forward_workspace.token.fp32 += dims.query_width() + 2 * dims.heads;
  attention.backward_workspace.token.compute = 3 * keys + dims.query_width();
  attention.backward_workspace.token.fp32 = 2 * keys + dims.query_width();
  // A step sees the keys of one rank.
  int64_t& per_key = attention.backward_workspace.thread_bytes_per_key;
  per_key = (per_key + degree - 1) / degree;
  Exchange& exchange = region.exchange(BlockAxis::context);
  exchange.forward.compute = (degree - 1) * keys;
  exchange.backward.compute = (degree - 1) * keys;
  exchange.backward.fp32 = degree * keys;
}

/// Every rank attends with some of the heads over whole rows, and keeps these.
void divide_by_heads(RegionCost& region, const AttentionDims& dims, int64_t degree) {
  const int64_t kv_heads = std::max(dims.kv_heads, degree);
  const int64_t sent = dims.query_width() + 2 * kv_heads * dims.head_dim;
  OpCost& attention = region.ops.back();
  attention.extra = {sent + dims.query_width(), dims.heads};
  attention.saves = attention.extra;
  attention.forward_workspace.token.compute = sent;
  attention.forward_workspace.token.fp32 = kv_heads * cpu::attention_packed_floats(dims.head_dim);
  attention.forward_workspace.tasks_per_document = dims.heads / degree;
  attention.backward_workspace.token.compute = 2 * sent + dims.query_width();
  attention.backward_workspace.tasks_per_document = kv_heads / degree;
  Exchange& exchange = region.exchange(BlockAxis::context);
  exchange.forward.compute = sent + dims.query_width();
  exchange.backward = exchange.forward;
}

}  // namespace

void exchange_context(RegionCost& region, const AttentionDims& dims, const ContextParallel& context) {
  switch (context.method) {
    case ContextMethod::allgather:
      return gather_keys(region, dims, context.degree);
    case ContextMethod::ring:
      return pass_keys(region, dims, context.degree);
    case ContextMethod::ulysses:
      return divide_by_heads(region, dims, context.degree);
  }
}

}  // namespace stepforge
