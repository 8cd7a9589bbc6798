// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/latent_attention.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/latent_heads.h"
#include "stepforge/kernels/rms_norm.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/norm_gradient.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of the norms of latents, whatever that of the other norms is: as transformers and DeepSeek's own code have it.
constexpr double kLatentEps = 1e-6;

at::Tensor product(const at::Tensor& x, const Parameter& weight) {
  return at::mm(x, weight.value().detach().t());
}

at::Tensor input_gradient(const at::Tensor& gradient, const Parameter& weight) {
  return at::mm(gradient, weight.value().detach());
}

void add_product(Parameter& weight, const at::Tensor& gradient, const at::Tensor& x) {
  if (weight.trained()) weight.add_product(gradient, x);
}

/// A latent before and after its norm; undefined without one.
struct Latent {
  at::Tensor plain;
  at::Tensor normed;
  at::Tensor rstd;
};

Latent normed_latent(at::Tensor plain, const Parameter& norm) {
  Latent latent{std::move(plain), {}, {}};
  latent.normed = at::empty_like(latent.plain);
  latent.rstd = at::empty({latent.plain.size(0)}, latent.plain.options().dtype(compute_type(latent.plain)));
  rms_norm_forward(latent.plain, norm.value().detach(), kLatentEps, latent.normed, latent.rstd);
  return latent;
}

/// In place of `gradient`, that of the norm's result.
void norm_backward(const at::Tensor& gradient, const Latent& latent, Parameter& norm) {
  NormGradient weight_gradient(norm, nullptr);
  rms_norm_backward(gradient, latent.plain, norm.value().detach(), latent.rstd, at::Tensor(), gradient,
                    weight_gradient.target());
  weight_gradient.finish();
}

struct LatentArguments {
  const LatentWeights* weights = nullptr;
  AttentionShape shape;
  at::Tensor positions;
  const RopeTable* rope = nullptr;

  int64_t latent_size() const { return weights->kv.up->value().size(1); }
  int64_t rotated() const { return weights->kv.down->value().size(0) - latent_size(); }
};

struct LatentFunction : torch::autograd::Function<LatentFunction> {
  // A weight is an argument so that a graph is built even if x needs no gradient.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*weight*/,
                            const LatentArguments* arguments) {
    const LatentProjection& of_q = arguments->weights->q;
    const LatentProjection& of_kv = arguments->weights->kv;
    Latent q_latent;
    if (of_q.down != nullptr) q_latent = normed_latent(product(x, *of_q.down), *of_q.norm);
    const at::Tensor q = product(of_q.down == nullptr ? x : q_latent.normed, *of_q.up);
    const at::Tensor down = product(x, *of_kv.down);
    const int64_t size = arguments->latent_size();
    const Latent latent =
        normed_latent(down.narrow(1, 0, size).clone(at::MemoryFormat::Contiguous), *of_kv.norm);
    const at::Tensor kv = product(latent.normed, *of_kv.up);
    at::Tensor out = at::empty({x.size(0), arguments->shape.qkv_width()}, x.options());
    latent_heads_forward(q, kv, down.narrow(1, size, arguments->rotated()), arguments->shape,
                         arguments->positions, *arguments->rope, out);
    ctx->save_for_backward(
        {x, latent.plain, latent.normed, latent.rstd, q_latent.plain, q_latent.normed, q_latent.rstd});
    save_value(*ctx, "arguments", *arguments);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    const auto saved = ctx->get_saved_variables();
    const auto& arguments = saved_value<LatentArguments>(*ctx, "arguments");
    // In place: attention's backward made this tensor, and nothing else uses it.
    const at::Tensor& gradient = gradients[0];
    const at::Tensor x = saved[0].detach();
    at::Tensor x_gradient = keys_backward(arguments, gradient, x, {saved[1], saved[2], saved[3]});
    queries_backward(arguments, gradient, x, {saved[4], saved[5], saved[6]}, x_gradient);
    return {x_gradient, at::Tensor(), at::Tensor()};
  }

  /// Turns the first columns of `gradient` into that of the queries; returns the gradient of x by keys and values.
  static at::Tensor keys_backward(const LatentArguments& arguments, const at::Tensor& gradient,
                                  const at::Tensor& x, const Latent& latent) {
    const LatentProjection& of_kv = arguments.weights->kv;
    const int64_t size = arguments.latent_size();
    const at::Tensor down = at::empty({x.size(0), of_kv.down->value().size(0)}, x.options());
    {
      at::Tensor up = at::empty({x.size(0), of_kv.up->value().size(0)}, x.options());
      latent_heads_backward(gradient, arguments.shape, arguments.positions, *arguments.rope, up,
                            down.narrow(1, size, arguments.rotated()));
      add_product(*of_kv.up, up, latent.normed);
      const at::Tensor normed = input_gradient(up, *of_kv.up);
      up.reset();
      norm_backward(normed, latent, *of_kv.norm);
      down.narrow(1, 0, size).copy_(normed);
    }
    add_product(*of_kv.down, down, x);
    return input_gradient(down, *of_kv.down);
  }

  /// Adds the gradient of x by queries.
  static void queries_backward(const LatentArguments& arguments, const at::Tensor& gradient,
                               const at::Tensor& x, const Latent& latent, at::Tensor& x_gradient) {
    const LatentProjection& of_q = arguments.weights->q;
    const at::Tensor up = gradient.narrow(1, 0, arguments.shape.q_width());
    if (of_q.down == nullptr) {
      add_product(*of_q.up, up, x);
      x_gradient.addmm_(up, of_q.up->value().detach());
      return;
    }
    add_product(*of_q.up, up, latent.normed);
    const at::Tensor down = input_gradient(up, *of_q.up);
    norm_backward(down, latent, *of_q.norm);
    add_product(*of_q.down, down, x);
    x_gradient.addmm_(down, of_q.down->value().detach());
  }
};

AttentionShape with_traits(AttentionShape shape, const LayerTraits& traits) {
  shape.scale = traits.query_scale;
  shape.window = traits.window;
  shape.cap = traits.score_cap;
  return shape;
}

}  // namespace

at::Tensor latent_qkv(const at::Tensor& x, const LatentWeights& weights, const AttentionShape& shape,
                      const at::Tensor& positions, const RopeTable& rope) {
  const LatentArguments arguments{&weights, shape, positions, &rope};
  return LatentFunction::apply(x, weights.kv.up->value(), &arguments);
}

LatentAttentionLayer::LatentAttentionLayer(const ParameterLookup& parameters, const std::string& prefix,
                                           const AttentionShape& shape, const LayerTraits& traits, double eps,
                                           const RopeTable& rope, int64_t layer, TensorExchange tensor)
    : branch_(parameters, prefix, traits, eps, static_cast<uint64_t>(2 * layer)),
      out_(parameters(prefix + ".out")),
      shape_(with_traits(shape, traits)),
      rope_(rope),
      layer_(layer),
      tensor_(std::move(tensor)) {
  const auto through_latent = [&](const std::string& name) -> LatentProjection {
    return {&parameters(name + "_down"), &parameters(name + "_latent_norm"), &parameters(name + "_up")};
  };
  weights_.kv = through_latent(prefix + ".kv");
  weights_.q = traits.projection == AttentionProjection::latent
                   ? through_latent(prefix + ".q")
                   : LatentProjection{.up = &parameters(prefix + ".q")};
}

at::Tensor LatentAttentionLayer::forward(const at::Tensor& x, const Context& context) {
  const auto [input, residual] = branch_.enter(x, tensor_, context);
  const at::Tensor qkv =
      latent_qkv(enter_layer(input, tensor_, context), weights_, shape_, context.batch->positions, rope_);
  at::Tensor attended;
  if (context.cache != nullptr) {
    attended = at::empty({qkv.size(0), shape_.out_width()}, qkv.options());
    attend_cached(qkv, shape_, context, layer_, attended);
  } else {
    attended = attend(qkv, shape_, *context.batch);
  }
  return branch_.leave(leave_linear(attended, out_, tensor_, context), residual, tensor_, context);
}

}  // namespace stepforge
