// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/kv_cache.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttendFunction : torch::autograd::Function<AttendFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const AttentionShape& shape,
                            const BatchTensors* batch) {
    at::Tensor out = at::empty({qkv.size(0), shape.out_width()}, qkv.options());
    at::Tensor lse = at::empty({qkv.size(0), shape.heads}, qkv.options().dtype(at::kFloat));
    attention_forward(split_qkv(qkv, shape), shape, batch->attention_ranges, out, lse);
    ctx->save_for_backward({qkv, out, lse});
    save_value(*ctx, "shape", shape);
    save_pointer(*ctx, "batch", batch);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& shape = saved_value<AttentionShape>(*ctx, "shape");
    const auto& ranges = saved_pointer<BatchTensors>(*ctx, "batch")->attention_ranges;
    at::Tensor qkv_gradient = at::empty_like(saved[0]);
    attention_backward(gradients[0], split_qkv(saved[0], shape), saved[1], saved[2], shape, ranges,
                       split_qkv(qkv_gradient, shape));
    return {qkv_gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void attend_cached(const at::Tensor& qkv, const AttentionShape& shape, const Context& context, int64_t layer,
                   const at::Tensor& out, const at::Tensor& sinks) {
  KvCache& cache = *context.cache;
  const int64_t count = qkv.size(0) / cache.rows();
  cache.append(layer, qkv, count);
  const at::Tensor queries =
      qkv.narrow(1, 0, shape.q_width()).contiguous().view({cache.rows(), count, shape.q_width()});
  const std::vector<int64_t> past(static_cast<size_t>(cache.rows()), cache.length());
  attention_cached(queries, cache.keys(layer), cache.values(layer), past, shape,
                   out.view({cache.rows(), count, shape.out_width()}), sinks);
}

at::Tensor attend(const at::Tensor& qkv, const AttentionShape& shape, const BatchTensors& batch) {
  return AttendFunction::apply(qkv, shape, &batch);
}

}  // namespace stepforge
