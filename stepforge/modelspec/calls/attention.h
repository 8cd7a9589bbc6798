// SPDX-License-Identifier: Apache-2.0
// attention(qkv; sinks) -> out, lse: causal attention inside each document (kernels/attention.h). With context parallelism
// keys pass between ranks inside the call, and to_heads(qkv), to_tokens(out) around it exchange tokens for heads.
#pragma once

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/attention_shape.h"
#include "stepforge/modelspec/calls/workspaces.h"
#include "stepforge/modelspec/context_parallel.h"

namespace stepforge {

struct AttentionAttributes {
  AttentionShape shape;
  int64_t layer = 0;             ///< whose cache holds the keys in generation
  ContextParallel context = {};  ///< if ranks have the other tokens of the rows
};

struct HeadsAttributes {
  AttentionShape all;  ///< of own tokens
  int64_t degree = 1;  ///< neighbours that join their tokens

  /// Of joined tokens: a key-value head goes to every rank that has query heads of its group.
  AttentionShape part() const {
    AttentionShape shape = all;
    shape.heads /= degree;
    shape.kv_heads = std::max<int64_t>(1, shape.kv_heads / degree);
    return shape;
  }
};

namespace attention_row {

inline CallWorkspace workspace(const CallView& view) {
  constexpr int64_t kFloatBytes = sizeof(float);
  const auto& [shape, layer, context] = view.attributes<AttentionAttributes>();
  const int64_t times = view.operands[0].times;
  CallWorkspace made;
  if (!view.call.weights.empty())
    made.weights.fixed_fp32 = made.queued.fixed_fp32 = view.call.weights[0].elements();
  Workspace& forward = made.forward;
  forward.token.fp32 =
      times * shape.kv_heads * cpu::attention_packed_floats(shape.head_dim, shape.value_size());
  forward.thread_bytes = kFloatBytes * cpu::attention_forward_floats(shape.head_dim, shape.value_size());
  forward.tasks_per_document = shape.heads;
  const auto [per_key, fixed] = cpu::attention_backward_floats(shape.head_dim, shape.value_size());
  Workspace& backward = made.backward;
  backward.thread_bytes = kFloatBytes * fixed;
  backward.thread_bytes_per_key = kFloatBytes * per_key;
  backward.tasks_per_document = shape.kv_heads;
  const int64_t degree = context.across();
  const int64_t keys = times * 2 * shape.k_width();
  const int64_t queries = times * shape.out_width();
  if (context.has_ring()) {
    // Two sets of keys; the results of one step beside those of all, in fp32.
    forward.token.compute = 2 * keys + queries;
    forward.token.fp32 += queries + times * 2 * shape.heads;
    // At the end, beside the gradient of qkv: those of one step, of the rank's own keys, and two sets that pass. Before,
    // with other keys instead of that gradient, it is less, unless there is a third rank.
    backward.token.compute = (degree > 2 ? 2 : 1) * keys + queries;
    backward.token.fp32 = 3 * keys + queries;
    // A step sees the keys of one rank.
    backward.thread_bytes_per_key = (backward.thread_bytes_per_key + degree - 1) / degree;
  } else if (degree > 1) {
    forward.token.compute = degree * keys;
    forward.token.fp32 *= degree;
    backward.token.compute = 2 * degree * keys;  // and their gradients
  }
  return made;
}

inline CallExchanges exchanges(const CallView& view) {
  const auto& [shape, layer, context] = view.attributes<AttentionAttributes>();
  const int64_t degree = context.across();
  if (degree == 1) return {};
  const int64_t keys = view.operands[0].times * 2 * shape.k_width();
  if (context.has_ring()) {  // gradients of keys follow them in fp32
    const auto shift = [](Elements elements) {
      return Exchange{BlockAxis::context, ExchangeKind::shift, elements, 0, /*beside=*/true};
    };
    return {{shift({(degree - 1) * keys})}, {shift({(degree - 1) * keys}), shift({0, (degree - 1) * keys})}};
  }
  return {{{BlockAxis::context, ExchangeKind::gather, {degree * keys}}},
          {{BlockAxis::context, ExchangeKind::gather, {degree * keys}},
           {BlockAxis::context, ExchangeKind::sum_slice, {degree * keys}}}};
}

/// An exchange of `from` elements of a token for `to`, with two copies of what is exchanged.
inline CallWorkspace exchange_workspace(int64_t from, int64_t to) {
  const int64_t exchanged = std::max(from, to);
  CallWorkspace made;
  made.forward.token.compute = 3 * exchanged - to;
  made.backward.token.compute = 3 * exchanged - from;
  return made;
}

inline CallExchanges head_exchanges(int64_t from, int64_t to) {
  const std::vector<Exchange> exchange = {{BlockAxis::heads, ExchangeKind::all_to_all, {std::max(from, to)}}};
  return {exchange, exchange};
}

}  // namespace attention_row

inline constexpr CallKind kAttention = {
    .name = "attention",
    .rule = TypeRule::attention,
    .results =
        [](const CallView& view) {
          const AttentionShape& shape = view.attributes<AttentionAttributes>().shape;
          require_width(view, 0, shape.qkv_width());
          LayerValue out = view.operands[0];
          out.width = shape.out_width();
          LayerValue lse = out;
          lse.width = shape.heads;
          lse.type = ElementType::fp32;
          lse.differentiable = false;
          return std::vector<LayerValue>{out, lse};
        },
    .derivative_reads = [](const CallView&) { return CallValues{.operands = 1, .results = 3}; },
    .flops_per_key =
        [](const CallView& view) {
          const AttentionShape& shape = view.attributes<AttentionAttributes>().shape;
          return 2.0 * static_cast<double>(view.operands[0].times * (shape.q_width() + shape.out_width()));
        },
    .window = [](const CallView& view) { return view.attributes<AttentionAttributes>().shape.window; },
    .workspace = attention_row::workspace,
    .exchanges = attention_row::exchanges,
    .text =
        [](const CallView& view) {
          const AttentionShape& shape = view.attributes<AttentionAttributes>().shape;
          std::string text = format("{} heads, {} of keys", shape.heads, shape.kv_heads);
          if (shape.window > 0) text += format(", window {}", shape.window);
          if (shape.cap > 0) text += format(", cap {}", shape.cap);
          return text;
        },
};

inline constexpr CallKind kToHeads = {
    .name = "to_heads",
    .rule = TypeRule::exchange,
    .results =
        [](const CallView& view) {
          const auto& heads = view.attributes<HeadsAttributes>();
          require_width(view, 0, heads.all.qkv_width());
          LayerValue made = view.operands[0];
          made.width = heads.part().qkv_width();
          made.times = heads.degree;
          return std::vector<LayerValue>{made};
        },
    .workspace =
        [](const CallView& view) {
          const auto& heads = view.attributes<HeadsAttributes>();
          return attention_row::exchange_workspace(heads.all.qkv_width(),
                                                   heads.degree * heads.part().qkv_width());
        },
    .exchanges =
        [](const CallView& view) {
          const auto& heads = view.attributes<HeadsAttributes>();
          return attention_row::head_exchanges(heads.all.qkv_width(),
                                               heads.degree * heads.part().qkv_width());
        },
};

inline constexpr CallKind kToTokens = {
    .name = "to_tokens",
    .rule = TypeRule::exchange,
    .results =
        [](const CallView& view) {
          const auto& heads = view.attributes<HeadsAttributes>();
          require_width(view, 0, heads.part().out_width());
          LayerValue made = view.operands[0];
          made.width = heads.all.out_width();
          made.times = 1;
          return std::vector<LayerValue>{made};
        },
    .workspace =
        [](const CallView& view) {
          const int64_t width = view.attributes<HeadsAttributes>().all.out_width();
          return attention_row::exchange_workspace(width, width);
        },
    .exchanges =
        [](const CallView& view) {
          const int64_t width = view.attributes<HeadsAttributes>().all.out_width();
          return attention_row::head_exchanges(width, width);
        },
};

}  // namespace stepforge
