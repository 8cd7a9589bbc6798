// SPDX-License-Identifier: Apache-2.0
// Attention of rows whose tokens are divided over ranks. Gathered tensors are in rank order; index_in_parts and
// index_in_rows reorder them to whole rows and back.
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
                      arguments->batch->attention_ranges, out, lse);
    ctx->save_for_backward({qkv, out, lse});
    save_value(*ctx, "arguments", *arguments);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& arguments = saved_value<ContextArguments>(*ctx, "arguments");
    const AttentionShape& shape = arguments.shape;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& qkv = saved[0];
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

/// Every rank gets some of the heads of whole rows and attends as without context parallelism. A key-value head
/// goes to every rank that has query heads of its group.
struct UlyssesFunction : torch::autograd::Function<UlyssesFunction> {
  /// The heads that one rank gets.
  static AttentionShape part_shape(const ContextArguments& arguments) {
    AttentionShape shape = arguments.shape;
    shape.heads /= arguments.degree();
    shape.kv_heads = std::max<int64_t>(1, shape.kv_heads / arguments.degree());
    return shape;
  }

  /// The heads of qkv that each rank gets, rank after rank.
  static at::Tensor heads_of_parts(const ContextArguments& arguments) {
    const AttentionShape& all = arguments.shape;
    const AttentionShape own = part_shape(arguments);
    std::vector<int64_t> heads;
    const auto add = [&heads](int64_t first, int64_t count) {
      for (int64_t head = first; head < first + count; ++head) heads.push_back(head);
    };
    for (int64_t part = 0; part < arguments.degree(); ++part) {
      const int64_t key = part * own.heads / all.group();
      add(part * own.heads, own.heads);
      add(all.heads + key, own.kv_heads);
      add(all.heads + all.kv_heads + key, own.kv_heads);
    }
    return at::tensor(heads);
  }

  /// [own tokens, width of each rank] to [tokens of whole rows, width].
  static at::Tensor to_whole_rows(const at::Tensor& own, const ContextArguments& arguments) {
    const int64_t degree = arguments.degree();
    const int64_t width = own.size(1) / degree;
    at::Tensor outgoing = own.view({own.size(0), degree, width}).transpose(0, 1).contiguous();
    at::Tensor incoming = at::empty_like(outgoing);
    arguments.exchange->all_to_all(outgoing, incoming);
    outgoing.reset();
    return incoming.view({degree * own.size(0), width}).index_select(0, arguments.batch->index_in_parts);
  }

  /// The inverse.
  static at::Tensor to_own_tokens(const at::Tensor& whole, const ContextArguments& arguments) {
    const int64_t degree = arguments.degree();
    const int64_t tokens = whole.size(0) / degree;
    at::Tensor outgoing = whole.index_select(0, arguments.batch->index_in_rows);
    at::Tensor incoming = at::empty({degree, tokens, whole.size(1)}, whole.options());
    arguments.exchange->all_to_all(outgoing, incoming);
    outgoing.reset();
    return incoming.transpose(0, 1).reshape({tokens, degree * whole.size(1)});
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const ContextArguments* arguments) {
    const AttentionShape shape = part_shape(*arguments);
    const at::Tensor by_head = qkv.view({qkv.size(0), -1, shape.head_dim});
    const at::Tensor whole = to_whole_rows(
        by_head.index_select(1, heads_of_parts(*arguments)).view({qkv.size(0), -1}), *arguments);
    at::Tensor out = at::empty({whole.size(0), shape.out_width()}, qkv.options());
    at::Tensor lse = at::empty({whole.size(0), shape.heads}, qkv.options().dtype(at::kFloat));
    attention_forward(split_qkv(whole, shape), shape, arguments->batch->documents, out, lse);
    ctx->save_for_backward({whole, out, lse});
    save_value(*ctx, "arguments", *arguments);
    return to_own_tokens(out, *arguments);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& arguments = saved_value<ContextArguments>(*ctx, "arguments");
    const AttentionShape shape = part_shape(arguments);
    const auto saved = ctx->get_saved_variables();
    at::Tensor out_gradient = to_whole_rows(gradients[0], arguments);
    at::Tensor whole = at::empty_like(saved[0]);
    attention_backward(out_gradient, split_qkv(saved[0], shape), saved[1], saved[2], shape,
                       arguments.batch->documents, split_qkv(whole, shape));
    out_gradient.reset();
    const at::Tensor own = to_own_tokens(whole, arguments);
    whole.reset();
    return {sum_heads(own, arguments), at::Tensor()};
  }

  /// Gradients of the heads of each rank; those of one head are added.
  static at::Tensor sum_heads(const at::Tensor& gradients, const ContextArguments& arguments) {
    const AttentionShape& shape = arguments.shape;
    const int64_t heads = shape.heads + 2 * shape.kv_heads;
    const at::Tensor by_head = gradients.view({gradients.size(0), -1, shape.head_dim});
    const bool repeated = by_head.size(1) > heads;
    const at::ScalarType type = repeated ? at::kFloat : gradients.scalar_type();
    at::Tensor sums = at::zeros({gradients.size(0), heads, shape.head_dim}, gradients.options().dtype(type));
    sums.index_add_(1, heads_of_parts(arguments), by_head.to(type));
    return sums.to(gradients.scalar_type()).view({gradients.size(0), heads * shape.head_dim});
  }
};

}  // namespace

at::Tensor attend_part(const at::Tensor& qkv, const AttentionShape& shape, const BatchTensors& batch,
                       const ContextExchange& exchange) {
  if (!exchange.several() || exchange.parallel.degree != batch.host.part.degree) {
    throw Error(format("attention: the batch has one of {} parts of its rows, but the model was made for {}",
                       batch.host.part.degree, exchange.parallel.degree));
  }
  const ContextArguments arguments{shape, &batch, &exchange};
  switch (exchange.parallel.method) {
    case ContextMethod::allgather:
      return GatherAttendFunction::apply(qkv, &arguments);
    case ContextMethod::ring:
      return attend_ring(qkv, arguments);
    case ContextMethod::ulysses:
      return UlyssesFunction::apply(qkv, &arguments);
  }
  return {};
}

}  // namespace stepforge
