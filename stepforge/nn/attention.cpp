// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/kv_cache.h"
#include "stepforge/nn/layers.h"
#include "stepforge/nn/norm_gradient.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RotateArguments {
  AttentionShape shape;
  at::Tensor positions;
  const RopeTable* rope = nullptr;
  Parameter* q_norm = nullptr;
  Parameter* k_norm = nullptr;
  NormConstants constants;
  const TensorExchange* summed = nullptr;

  QkNorm norm() const {
    if (q_norm == nullptr) return {};
    return {q_norm->value().detach(), k_norm->value().detach(), constants.eps, constants.offset};
  }
};

struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const RotateArguments* arguments) {
    const QkNorm norm = arguments->norm();
    at::Tensor out = qkv;
    at::Tensor rstd;
    if (norm.present()) {
      out = at::empty_like(qkv);
      rstd = at::empty({qkv.size(0), norm.count(arguments->shape)}, qkv.options().dtype(at::kFloat));
      ctx->save_for_backward({qkv, rstd});
    } else {
      ctx->mark_dirty({qkv});
    }
    qk_norm_rope_forward(qkv, arguments->shape, arguments->positions, *arguments->rope, norm, out, rstd);
    save_value(*ctx, "arguments", *arguments);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& arguments = saved_value<RotateArguments>(*ctx, "arguments");
    const QkNorm norm = arguments.norm();
    // In place: attention's backward made this tensor, and nothing else uses it.
    const auto rotate_back = [&](const at::Tensor& qkv, const at::Tensor& rstd, const at::Tensor& q_gradient,
                                 const at::Tensor& k_gradient) {
      qk_norm_rope_backward(gradients[0], qkv, arguments.shape, arguments.positions, *arguments.rope, norm,
                            rstd, q_gradient, k_gradient);
    };
    if (norm.present()) {
      const auto saved = ctx->get_saved_variables();
      NormGradient q(*arguments.q_norm, arguments.summed);
      NormGradient k(*arguments.k_norm, arguments.summed);
      rotate_back(saved[0], saved[1], q.target(), k.target());
      q.finish();
      k.finish();
    } else {
      rotate_back({}, {}, {}, {});
    }
    return {gradients[0], at::Tensor()};
  }
};

struct AttendFunction : torch::autograd::Function<AttendFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const AttentionShape& shape,
                            const BatchTensors* batch, const AttentionSinks* sinks) {
    at::Tensor out = at::empty({qkv.size(0), shape.out_width()}, qkv.options());
    at::Tensor lse = at::empty({qkv.size(0), shape.heads}, qkv.options().dtype(at::kFloat));
    attention_forward(split_qkv(qkv, shape), shape, batch->attention_ranges, out, lse, sinks->values(shape));
    ctx->save_for_backward({qkv, out, lse});
    save_value(*ctx, "shape", shape);
    save_pointer(*ctx, "batch", batch);
    save_value(*ctx, "sinks", *sinks);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& shape = saved_value<AttentionShape>(*ctx, "shape");
    const auto& ranges = saved_pointer<BatchTensors>(*ctx, "batch")->attention_ranges;
    saved_value<AttentionSinks>(*ctx, "sinks").add_gradient(gradients[0], saved[1], saved[2], shape, ranges);
    at::Tensor qkv_gradient = at::empty_like(saved[0]);
    attention_backward(gradients[0], split_qkv(saved[0], shape), saved[1], saved[2], shape, ranges,
                       split_qkv(qkv_gradient, shape));
    return {qkv_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor attend_cached(const at::Tensor& qkv, const AttentionShape& shape, const Context& context,
                         int64_t layer, const AttentionSinks& sinks) {
  KvCache& cache = *context.cache;
  const int64_t count = qkv.size(0) / cache.rows();
  cache.append(layer, qkv, count);
  const at::Tensor queries =
      qkv.narrow(1, 0, shape.q_width()).contiguous().view({cache.rows(), count, shape.q_width()});
  const std::vector<int64_t> past(static_cast<size_t>(cache.rows()), cache.length());
  at::Tensor out = at::empty({cache.rows(), count, shape.out_width()}, queries.options());
  attention_cached(queries, cache.keys(layer), cache.values(layer), past, shape, out, sinks.values(shape));
  return out.view({qkv.size(0), shape.out_width()});
}

at::Tensor rotate(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                  const RopeTable& rope, Parameter* q_norm, Parameter* k_norm, const NormConstants& constants,
                  const TensorExchange* summed) {
  const RotateArguments arguments{shape, positions, &rope, q_norm, k_norm, constants, summed};
  return RotateFunction::apply(qkv, &arguments);
}

at::Tensor attend(const at::Tensor& qkv, const AttentionShape& shape, const BatchTensors& batch,
                  const AttentionSinks& sinks) {
  return AttendFunction::apply(qkv, shape, &batch, &sinks);
}

AttentionLayer::AttentionLayer(const ParameterLookup& parameters, const std::string& prefix, int64_t head_dim,
                               const LayerTraits& traits, double eps, const RopeTable& rope, int64_t layer,
                               TensorExchange tensor, ContextExchange exchange)
    : branch_(parameters, prefix, traits, eps, static_cast<uint64_t>(2 * layer)),
      qkv_(parameters(prefix + ".qkv")),
      out_(parameters(prefix + ".out")),
      qkv_bias_(traits.qkv_bias ? &parameters(prefix + ".qkv_bias") : nullptr),
      out_bias_(traits.out_bias ? &parameters(prefix + ".out_bias") : nullptr),
      sinks_{traits.sinks ? &parameters(prefix + ".sinks") : nullptr},
      shape_{.head_dim = head_dim,
             .scale = traits.query_scale,
             .window = traits.window,
             .cap = traits.score_cap},
      qk_constants_{eps, traits.norm_offset},
      rope_(rope),
      layer_(layer),
      tensor_(std::move(tensor)),
      exchange_(std::move(exchange)) {
  if (traits.qk_norm != QkNormScope::none) {
    q_norm_ = &parameters(prefix + ".q_norm");
    k_norm_ = &parameters(prefix + ".k_norm");
  }
  // A layer may hold some of the heads only.
  shape_.heads = out_.spec().shape.at(1) / head_dim;
  shape_.kv_heads = (qkv_.spec().shape.at(0) / head_dim - shape_.heads) / 2;
}

at::Tensor AttentionLayer::forward(const at::Tensor& x, const Context& context) {
  const auto [input, residual] = branch_.enter(x, tensor_, context);
  at::Tensor qkv = enter_linear(input, qkv_, tensor_, context);
  if (qkv_bias_ != nullptr) qkv = add_bias(qkv, *qkv_bias_);
  qkv = rotate(qkv, shape_, context.batch->positions, rope_, q_norm_, k_norm_, qk_constants_,
               is_divided(qkv_) ? &tensor_ : nullptr);
  const bool parts = context.batch->host.part.degree > 1;
  const at::Tensor attended = context.cache != nullptr ? attend_cached(qkv, shape_, context, layer_, sinks_)
                              : parts ? attend_part(qkv, shape_, *context.batch, exchange_, sinks_)
                                      : attend(qkv, shape_, *context.batch, sinks_);
  at::Tensor out = leave_linear(attended, out_, tensor_, context);
  if (out_bias_ != nullptr)
    out = add_bias(out, *out_bias_, takes_slice(tensor_, context) ? &tensor_ : nullptr);
  return branch_.leave(out, residual, tensor_, context);
}

}  // namespace stepforge
