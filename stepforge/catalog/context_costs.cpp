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
  attention.forward_workspace.token.compute += 2 * keys + dims.query_width();
  attention.forward_workspace.token.fp32 += dims.query_width() + 2 * dims.heads;
  attention.backward_workspace.token.compute += 3 * keys + dims.query_width();
  attention.backward_workspace.token.fp32 += 2 * keys + dims.query_width();
  // A step sees the keys of one rank.
  int64_t& per_key = attention.backward_workspace.thread_bytes_per_key;
  per_key = (per_key + degree - 1) / degree;
  Exchange& exchange = region.exchange(BlockAxis::context);
  exchange.forward.compute = (degree - 1) * keys;
  exchange.backward.compute = (degree - 1) * keys;
  exchange.backward.fp32 = degree * keys;
}

/// An exchange between neighbours: `from` elements of a token become `to`, with two copies of what is exchanged.
OpCost exchange_heads(const char* name, int64_t from, int64_t to) {
  const int64_t exchanged = std::max(from, to);
  OpCost cost;
  cost.name = name;
  cost.output.compute = to;
  cost.forward_workspace.token.compute = 3 * exchanged - to;
  cost.gradient.compute = from;
  cost.backward_workspace.token.compute = 3 * exchanged - from;
  return cost;
}

/// Puts the exchanges of tokens for heads around the last operation, attention.
void divide_by_heads(RegionCost& region, const AttentionDims& dims, const AttentionDims& joined,
                     int64_t degree) {
  OpCost attention = region.ops.back();
  attention.forward_workspace.tasks_per_document /= degree;
  attention.backward_workspace.tasks_per_document /= degree;
  region.ops.back() = exchange_heads("to heads", dims.qkv_width(), joined.qkv_width());
  region.ops.push_back(attention);
  region.ops.push_back(exchange_heads("to tokens", dims.query_width(), dims.query_width()));
  Exchange& exchange = region.exchange(BlockAxis::heads);
  exchange.forward.compute = joined.qkv_width() + dims.query_width();
  exchange.backward = exchange.forward;
}

}  // namespace

AttentionDims joined_dims(AttentionDims dims, const ContextParallel& context) {
  if (context.heads() > 1) dims.kv_heads = std::max(dims.kv_heads, context.heads());
  return dims;
}

void exchange_context(RegionCost& region, const AttentionDims& dims, const ContextParallel& context) {
  const AttentionDims joined = joined_dims(dims, context);
  if (context.has_ring())
    pass_keys(region, joined, context.across());
  else if (context.across() > 1)
    gather_keys(region, joined, context.across());
  if (context.heads() > 1) divide_by_heads(region, dims, joined, context.heads());
}

}  // namespace stepforge
