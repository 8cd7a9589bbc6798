// SPDX-License-Identifier: Apache-2.0
// Attention of rows whose tokens are divided over ranks: exchanges tokens for heads, gathers keys. Gathered tensors
// are in rank order; index_in_parts and index_in_rows reorder them to rows and back.
#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/nn/context_arguments.h"
#include "stepforge/nn/function_data.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Attention of this rank's queries to the keys and values of whole rows. These are gathered again in backward,
/// so that a rank keeps only its own.
struct GatherAttendFunction : torch::autograd::Function<GatherAttendFunction> {
  /// Keys and values of whole rows.
  static at::Tensor gather(const at::Tensor& qkv, const ContextArguments& arguments) {
    at::Tensor own = own_keys(qkv, arguments);
    at::Tensor parts = at::empty({arguments.degree() * own.size(0), own.size(1)}, own.options());
    arguments.exchange->gather(own, parts);
    own.reset();
    return parts.index_select(0, arguments.batch->index_in_parts);
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const ContextArguments* arguments) {
    const AttentionShape& shape = arguments->shape;
    at::Tensor out = at::empty({qkv.size(0), shape.out_width()}, qkv.options());
    at::Tensor lse = at::empty({qkv.size(0), shape.heads}, qkv.options().dtype(at::kFloat));
    attention_forward(with_keys(qkv, gather(qkv, *arguments), *arguments), shape,
                      arguments->batch->attention_ranges, out, lse, arguments->sinks.values(shape));
    ctx->save_for_backward({qkv, out, lse});
    save_value(*ctx, "arguments", *arguments);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& arguments = saved_value<ContextArguments>(*ctx, "arguments");
    const AttentionShape& shape = arguments.shape;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    arguments.sinks.add_gradient(gradients[0], saved[1], saved[2], shape, arguments.batch->attention_ranges);
    const at::Tensor qkv_gradient = at::empty_like(qkv);
    at::Tensor keys = gather(qkv, arguments);
    at::Tensor gradient = at::empty_like(keys);
    attention_backward(gradients[0], with_keys(qkv, keys, arguments), saved[1], saved[2], shape,
                       arguments.batch->attention_ranges, with_keys(qkv_gradient, gradient, arguments));
    keys.reset();
    const at::Tensor parts = gradient.index_select(0, arguments.batch->index_in_rows);
    gradient.reset();
    const at::Tensor own = at::empty({qkv.size(0), parts.size(1)}, parts.options());
    arguments.exchange->sum_parts(parts, own);
    qkv_gradient.narrow(1, shape.out_width(), own.size(1)).copy_(own);
    return {qkv_gradient, at::Tensor()};
  }
};

/// Neighbours exchange tokens for heads: each gets some of the heads of all their tokens. A key-value head goes to
/// every one that has query heads of its group.
struct HeadsExchange {
  AttentionShape all;
  const BatchTensors* batch = nullptr;
  const ContextExchange* exchange = nullptr;

  int64_t degree() const { return exchange->parallel.heads(); }

  /// The heads that one of them gets.
  AttentionShape part_shape() const {
    AttentionShape shape = all;
    shape.heads /= degree();
    shape.kv_heads = std::max<int64_t>(1, shape.kv_heads / degree());
    return shape;
  }

  /// The heads of qkv that each gets, one after the other.
  at::Tensor heads_of_parts() const {
    const AttentionShape own = part_shape();
    std::vector<int64_t> heads;
    const auto add = [&heads](int64_t first, int64_t count) {
      for (int64_t head = first; head < first + count; ++head) heads.push_back(head);
    };
    for (int64_t part = 0; part < degree(); ++part) {
      const int64_t key = part * own.heads / all.group();
      add(part * own.heads, own.heads);
      add(all.heads + key, own.kv_heads);
      add(all.heads + all.kv_heads + key, own.kv_heads);
    }
    return at::tensor(heads);
  }

  /// [own tokens, width of each] to [joined tokens, width].
  at::Tensor to_joined_tokens(const at::Tensor& own) const {
    const int64_t width = own.size(1) / degree();
    at::Tensor outgoing = own.view({own.size(0), degree(), width}).transpose(0, 1).contiguous();
    at::Tensor incoming = at::empty_like(outgoing);
    exchange->all_to_all(outgoing, incoming);
    outgoing.reset();
    return incoming.view({degree() * own.size(0), width}).index_select(0, batch->index_in_parts);
  }

  /// The inverse.
  at::Tensor to_own_tokens(const at::Tensor& joined) const {
    const int64_t tokens = joined.size(0) / degree();
    at::Tensor outgoing = joined.index_select(0, batch->index_in_rows);
    at::Tensor incoming = at::empty({degree(), tokens, joined.size(1)}, joined.options());
    exchange->all_to_all(outgoing, incoming);
    outgoing.reset();
    return incoming.transpose(0, 1).reshape({tokens, degree() * joined.size(1)});
  }

  /// Gradients of the heads of each; those of one head are added.
  at::Tensor sum_heads(const at::Tensor& gradients) const {
    const int64_t heads = all.heads + 2 * all.kv_heads;
    const at::Tensor by_head = gradients.view({gradients.size(0), -1, all.head_dim});
    const bool repeated = by_head.size(1) > heads;
    const at::ScalarType type = repeated ? at::kFloat : gradients.scalar_type();
    at::Tensor sums = at::zeros({gradients.size(0), heads, all.head_dim}, gradients.options().dtype(type));
    sums.index_add_(1, heads_of_parts(), by_head.to(type));
    return sums.to(gradients.scalar_type()).view({gradients.size(0), heads * all.head_dim});
  }
};

/// qkv of own tokens with all heads to qkv of joined tokens with some of them.
struct ToHeadsFunction : torch::autograd::Function<ToHeadsFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const HeadsExchange* heads) {
    save_value(*ctx, "heads", *heads);
    const at::Tensor by_head = qkv.view({qkv.size(0), -1, heads->all.head_dim});
    return heads->to_joined_tokens(by_head.index_select(1, heads->heads_of_parts()).view({qkv.size(0), -1}));
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& heads = saved_value<HeadsExchange>(*ctx, "heads");
    return {heads.sum_heads(heads.to_own_tokens(gradients[0])), at::Tensor()};
  }
};

/// The results of joined tokens with some heads to those of own tokens with all.
struct ToTokensFunction : torch::autograd::Function<ToTokensFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& out, const HeadsExchange* heads) {
    save_value(*ctx, "heads", *heads);
    return heads->to_own_tokens(out);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& heads = saved_value<HeadsExchange>(*ctx, "heads");
    return {heads.to_joined_tokens(gradients[0]), at::Tensor()};
  }
};

/// Attention of the tokens that this rank attends for: to their own keys, and to those that pass between ranks.
at::Tensor attend_joined(const at::Tensor& qkv, const AttentionShape& shape, const BatchTensors& batch,
                         const ContextExchange& exchange, const AttentionSinks& sinks) {
  const ContextArguments arguments{shape, &batch, &exchange, sinks};
  if (exchange.parallel.across() == 1) return attend(qkv, shape, batch, sinks);
  if (exchange.parallel.has_ring()) return attend_ring(qkv, arguments);
  return GatherAttendFunction::apply(qkv, &arguments);
}

}  // namespace

at::Tensor attend_part(const at::Tensor& qkv, const AttentionShape& shape, const BatchTensors& batch,
                       const ContextExchange& exchange, const AttentionSinks& sinks) {
  const ContextPart& part = batch.host.part;
  if (!exchange.several() || exchange.parallel.degree != part.degree ||
      exchange.parallel.heads() != part.heads) {
    throw Error(
        format("attention: the batch has one of {} parts of its rows, {} of which attend together, but the "
               "model was made for {} and {}",
               part.degree, part.heads, exchange.parallel.degree, exchange.parallel.heads()));
  }
  if (exchange.parallel.heads() == 1) return attend_joined(qkv, shape, batch, exchange, sinks);
  const HeadsExchange heads{shape, &batch, &exchange};
  const at::Tensor some_heads = ToHeadsFunction::apply(qkv, &heads);
  const AttentionShape own = heads.part_shape();
  const AttentionSinks own_sinks{sinks.parameter, sinks.first + part.index % part.heads * own.heads};
  const at::Tensor out = attend_joined(some_heads, own, batch, exchange, own_sinks);
  return ToTokensFunction::apply(out, &heads);
}

}  // namespace stepforge
