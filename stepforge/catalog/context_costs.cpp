// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/context_costs.h"

#include <algorithm>

#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge {

namespace {

/// Every rank gathers the keys and values of whole rows, in forward and again in backward.
void gather_keys(RegionSpec& region, const AttentionDims& dims, int64_t degree) {
  const int64_t gathered = degree * 2 * dims.kv_heads * dims.head_dim;
  CallSpec& attention = region.calls.back();
  attention.forward_workspace.token.compute = gathered;
  attention.forward_workspace.token.fp32 *= degree;
  attention.backward_workspace.token.compute = 2 * gathered;  // and their gradients
  attention.forward_exchanges = {{BlockAxis::context, ExchangeKind::gather, {gathered}}};
  attention.backward_exchanges = {{BlockAxis::context, ExchangeKind::gather, {gathered}},
                                  {BlockAxis::context, ExchangeKind::sum_slice, {gathered}}};
}

/// Keys and values of every rank pass through this one, and their gradients in fp32 behind them.
void pass_keys(RegionSpec& region, const AttentionDims& dims, int64_t degree) {
  const int64_t keys = 2 * dims.kv_heads * dims.head_dim;
  CallSpec& attention = region.calls.back();
  // Two sets of keys; the results of one step beside those of all, in fp32.
  attention.forward_workspace.token.compute += 2 * keys + dims.query_width();
  attention.forward_workspace.token.fp32 += dims.query_width() + 2 * dims.heads;
  // At the end, beside the gradient of qkv: those of one step, of the rank's own keys, and two sets that pass. Before,
  // with other keys instead of that gradient, it is less, unless there is a third rank.
  attention.backward_workspace.token.compute += (degree > 2 ? 2 : 1) * keys + dims.query_width();
  attention.backward_workspace.token.fp32 += 3 * keys + dims.query_width();
  // A step sees the keys of one rank.
  int64_t& per_key = attention.backward_workspace.thread_bytes_per_key;
  per_key = (per_key + degree - 1) / degree;
  const auto shift = [](Elements elements) {
    return Exchange{BlockAxis::context, ExchangeKind::shift, elements, 0, /*beside=*/true};
  };
  attention.forward_exchanges = {shift({(degree - 1) * keys})};
  attention.backward_exchanges = {shift({(degree - 1) * keys}), shift({0, (degree - 1) * keys})};
}

/// An exchange between neighbours: `from` elements of a token become `to`, with two copies of what is exchanged.
CallSpec exchange_heads(const char* name, int64_t from, int64_t to) {
  const int64_t exchanged = std::max(from, to);
  CallSpec call{.name = name, .kind = CallKind::exchange};
  call.forward_exchanges = {{BlockAxis::heads, ExchangeKind::all_to_all, {exchanged}}};
  call.backward_exchanges = call.forward_exchanges;
  call.output.compute = to;
  call.forward_workspace.token.compute = 3 * exchanged - to;
  call.gradient.compute = from;
  call.backward_workspace.token.compute = 3 * exchanged - from;
  return call;
}

/// Puts the exchanges of tokens for heads around the last operation, attention.
void divide_by_heads(RegionSpec& region, const AttentionDims& dims, const AttentionDims& joined,
                     int64_t degree) {
  CallSpec attention = region.calls.back();
  attention.forward_workspace.tasks_per_document /= degree;
  attention.backward_workspace.tasks_per_document /= degree;
  region.calls.back() = exchange_heads("to heads", dims.qkv_width(), joined.qkv_width());
  region.calls.push_back(attention);
  region.calls.push_back(exchange_heads("to tokens", dims.query_width(), dims.query_width()));
}

}  // namespace

AttentionDims joined_dims(AttentionDims dims, const ContextParallel& context) {
  if (context.heads() > 1) dims.kv_heads = std::max(dims.kv_heads, context.heads());
  return dims;
}

void exchange_context(RegionSpec& region, const AttentionDims& dims, const ContextParallel& context) {
  const AttentionDims joined = joined_dims(dims, context);
  if (context.has_ring())
    pass_keys(region, joined, context.across());
  else if (context.across() > 1)
    gather_keys(region, joined, context.across());
  if (context.heads() > 1) divide_by_heads(region, dims, joined, context.heads());
}

}  // namespace stepforge
