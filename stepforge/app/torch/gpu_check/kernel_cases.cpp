// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/gpu_check/kernel_cases.h"

#include <array>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/kernel_list.h"

namespace stepforge::gpu_check {

namespace {

Tensors call_rms_norm(const Inputs& in) {
  const std::vector<int64_t> shape = {in.tokens, in.width};
  const at::Tensor x = in.some(shape, 1);
  const at::Tensor weight = in.fp32({in.width}, 2);
  Tensors r = {in.unwritten(shape), in.unwritten32({in.tokens}), in.unwritten(shape),
               in.unwritten32({in.width})};
  rms_norm_forward(x, weight, 1e-5, r[0], r[1], 1.0);
  rms_norm_backward(in.some(shape, 3), x, weight, r[1], in.some(shape, 4), r[2], r[3], 1.0);
  return r;
}

Tensors call_bias(const Inputs& in) {
  Tensors r = {in.some({in.tokens, in.width}, 1), in.unwritten32({in.width})};
  bias_forward(r[0], in.fp32({in.width}, 2));
  bias_backward(in.some({in.tokens, in.width}, 3), r[1]);
  return r;
}

Tensors call_gated(const Inputs& in) {
  const int64_t rows = in.tokens / 2 * 2;
  const at::Tensor gate_up = in.some({rows, 2 * in.width}, 1, 2);
  const at::Tensor grad = in.some({rows, in.width}, 2);
  const at::Tensor weights = in.fp32({rows / 2, 2}, 3);
  const at::Tensor slots = in.ints(1, in.tokens).slice(0, 0, rows).flip(0).contiguous();
  const ClampedSwiglu limits = {.limit = 2.5, .alpha = 1.3};
  Tensors r;
  const auto out = [&] { return r.emplace_back(in.unwritten({rows, in.width})); };
  const auto back = [&] { return r.emplace_back(in.unwritten({rows, 2 * in.width})); };
  const auto of_weights = [&] { return r.emplace_back(in.unwritten32({rows / 2, 2})); };
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    swiglu_forward(gate_up, out(), activation);
    swiglu_backward(grad, gate_up, back(), activation);
  }
  expert_swiglu_forward(gate_up, weights, slots, out());
  expert_swiglu_backward(grad, gate_up, weights, slots, back(), of_weights());
  clamped_swiglu_forward(gate_up, weights, slots, limits, out());
  clamped_swiglu_backward(grad, gate_up, weights, slots, limits, back(), of_weights());
  return r;
}

Tensors call_dropout(const Inputs& in) {
  const std::vector<int64_t> shape = {in.tokens, in.width};
  // Numbers of rows that need more than 32 bits.
  const TokenCoords coords{in.ints(1, in.tokens).to(at::kLong).add(5'000'000'000), in.ints(7, 50)};
  const DropoutKey key{0xFEDCBA9876543210};
  Tensors r = {in.unwritten(shape), in.unwritten(shape), in.unwritten(shape)};
  dropout_add_forward(in.some(shape, 1), in.some(shape, 2), 0.3, key, coords, r[0]);
  dropout_add_backward(in.some(shape, 3), 0.3, key, coords, r[1]);
  dropout_add_forward(in.some(shape, 1), in.some(shape, 2), 0.0, key, {}, r[2]);
  return r;
}

Tensors call_rope(const Inputs& in) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 10};
  const at::Tensor qkv = in.some({in.tokens, shape.qkv_width()}, 1);
  const at::Tensor positions = in.ints(7, 50);
  const RopeTable table = make_rope_table(50, 10, 100.0, {}, in.device);
  Tensors r;
  for (const int64_t span : {0, 1, 4}) {
    QkNorm norm;
    at::Tensor rstd;
    at::Tensor grads[2];
    if (span > 0) {
      norm = {.q_weight = in.fp32({10 * span}, 2), .k_weight = in.fp32({span > 1 ? 20 : 10}, 3)};
      rstd = r.emplace_back(in.unwritten32({in.tokens, norm.count(shape)}));
      grads[0] = r.emplace_back(in.unwritten32(norm.q_weight.sizes()));
      grads[1] = r.emplace_back(in.unwritten32(norm.k_weight.sizes()));
    }
    const at::Tensor out = r.emplace_back(in.unwritten(qkv.sizes()));
    const at::Tensor grad = r.emplace_back(in.some(qkv.sizes(), 4));
    qk_norm_rope_forward(qkv, shape, positions, table, norm, out, rstd);
    qk_norm_rope_backward(grad, span > 0 ? qkv : at::Tensor(), shape, positions, table, norm, rstd, grads[0],
                          grads[1]);
  }
  return r;
}

Tensors call_latent_heads(const Inputs& in) {
  const AttentionShape shape{.heads = 3, .kv_heads = 3, .head_dim = 10, .value_dim = 7};
  const at::Tensor positions = in.ints(7, 50);
  const RopeTable table = make_rope_table(50, 4, 100.0, {}, in.device);
  Tensors r = {in.unwritten({in.tokens, shape.qkv_width()}), in.unwritten({in.tokens, 30}),
               in.unwritten({in.tokens, 39}), in.unwritten({in.tokens, 4})};
  latent_heads_forward(in.some({in.tokens, 30}, 1), in.some({in.tokens, 39}, 2), in.some({in.tokens, 4}, 3),
                       shape, positions, table, r[0]);
  latent_heads_backward(in.some({in.tokens, shape.qkv_width()}, 4), shape, positions, table, r[1], r[2],
                        r[3]);
  return r;
}

/// Two documents, the second of which has a range of its own for its last queries.
Tensors call_attention(const Inputs& in) {
  const int64_t n = in.tokens;
  const std::vector<AttentionRange> ranges = {
      {0, 4, 0, 4, 0}, {4, n - 7, 4, n - 4, 0}, {n - 3, 3, 4, n - 4, n - 7}};
  const at::Tensor sinks = in.fp32({4}, 5);
  Tensors r;
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 8, .scale = 0.4, .window = 3, .value_dim = 6},
        AttentionShape{.heads = 4, .kv_heads = 1, .head_dim = 8, .scale = 0.4, .cap = 1.5}}) {
    const QueryKeyValue inputs = split_qkv(in.some({n, shape.qkv_width()}, 1), shape);
    const at::Tensor grads = in.unwritten({n, shape.qkv_width()});
    const at::Tensor grad_out = in.some({n, shape.out_width()}, 2);
    const Tensors out = {in.unwritten({n, shape.out_width()}), in.unwritten32({n, 4}), in.unwritten32({4})};
    attention_forward(inputs, shape, ranges, out[0], out[1], sinks);
    attention_backward(grad_out, inputs, out[0], out[1], shape, ranges, split_qkv(grads, shape));
    attention_sink_gradient(grad_out, out[0], out[1], sinks, shape, ranges, out[2]);
    const at::Tensor generated = in.unwritten({2, 3, shape.out_width()});
    attention_cached(in.some({2, 3, shape.q_width()}, 6), in.some({2, 9, shape.kv_heads, shape.head_dim}, 7),
                     in.some({2, 9, shape.kv_heads, shape.value_size()}, 8), std::array<int64_t, 2>{6, 1},
                     shape, generated, sinks);
    r.insert(r.end(), {out[0], out[1], out[2], grads, generated});
  }
  // What flash kernels can compute: no sinks, no cap, values as wide as keys.
  for (const int64_t window : {int64_t{0}, int64_t{3}}) {
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 16, .scale = 0.25, .window = window};
    const QueryKeyValue inputs = split_qkv(in.some({n, shape.qkv_width()}, 9), shape);
    const at::Tensor grads = in.unwritten({n, shape.qkv_width()});
    const Tensors out = {in.unwritten({n, shape.out_width()}), in.unwritten32({n, 4})};
    attention_forward(inputs, shape, ranges, out[0], out[1]);
    attention_backward(in.some({n, shape.out_width()}, 10), inputs, out[0], out[1], shape, ranges,
                       split_qkv(grads, shape));
    r.insert(r.end(), {out[0], out[1], grads});
  }
  return r;
}

/// -100 in every fourth token.
at::Tensor labels_of(const Inputs& in, int64_t vocabulary) {
  return in.ints(3, vocabulary).masked_fill(in.ints(1, 4).eq(1), -100);
}

LossGradient loss_gradient(const Inputs& in, double smoothing) {
  return {.scale = in.scalar(0.25),
          .z_weight = 0.01,
          .weights = in.fp32({in.tokens}, 3).to(at::kFloat),
          .cap = 2.0,
          .smoothing = smoothing,
          .soft = {.ids = {}, .log_probs = {}, .weight = 0.25, .divergence = {}}};  // the label's share
}

Tensors call_losses(const Inputs& in) {
  Tensors r;
  const at::Tensor labels = labels_of(in, in.width);
  for (const double smoothing : {0.0, 0.1}) {
    cap_logits(r.emplace_back(in.some({in.tokens, in.width}, 1, 3)), 2.0);
    // Not those: they are rounded, and near the cap their gradient shows it.
    const at::Tensor logits = r.emplace_back(in.some({in.tokens, in.width}, 2, 0.9));
    const at::Tensor alone = r.emplace_back(in.unwritten32({in.tokens}));
    cross_entropy_forward(logits, labels, alone);
    cross_entropy_forward_backward(logits, labels, loss_gradient(in, smoothing),
                                   r.emplace_back(in.unwritten32({in.tokens})));
  }
  return r;
}

/// One rank with a part of the vocabulary; the sums are as if another part were the same.
Tensors call_parts_of_losses(const Inputs& in) {
  TensorExchange ranks;
  ranks.max = [](const at::Tensor&) {};
  ranks.sum = [](const at::Tensor& terms) { terms.mul_(2); };
  Tensors r;
  for (const double smoothing : {0.0, 0.1}) {
    const LinearCrossEntropyOutputs outputs{.token_loss = in.unwritten32({in.tokens}),
                                            .grad_hidden = in.unwritten({in.tokens, 8}),
                                            .grad_weight = in.unwritten32({10, 8})};
    linear_cross_entropy(in.some({in.tokens, 8}, 1), in.some({10, 8}, 2), labels_of(in, 20),
                         loss_gradient(in, smoothing), 7, outputs, {.begin = 9, .size = 20}, ranks);
    r.insert(r.end(), {outputs.token_loss, outputs.grad_hidden, outputs.grad_weight});
  }
  return r;
}

Tensors call_embedding(const Inputs& in) {
  const at::Tensor tokens = in.ints(5, 7);
  const at::Tensor grad = in.some({in.tokens, in.width}, 2);
  Tensors r = {in.unwritten({in.tokens, in.width}), in.fp32({7, in.width}, 3),
               in.unwritten({in.tokens, in.width}), in.unwritten32({4, in.width})};
  embedding_forward(tokens, in.some({7, in.width}, 1), r[0], {}, 1.5);
  embedding_backward(tokens, grad, r[1], /*accumulate=*/true, {}, 1.5);
  embedding_forward(tokens, in.some({4, in.width}, 1), r[2], {.begin = 2, .size = 7});
  embedding_backward(tokens, grad, r[3], /*accumulate=*/false, {.begin = 2, .size = 7});
  return r;
}

/// Of three experts, one of which has no rows.
std::vector<int64_t> offsets_of(const Inputs& in) {
  return {0, 5, 5, in.tokens};
}

Tensors call_grouped(const Inputs& in) {
  const std::vector<int64_t> offsets = offsets_of(in);
  const at::Tensor x = in.some({in.tokens, in.width}, 4);
  const at::Tensor weights = in.some({3, 6, in.width}, 1);
  const at::Tensor grad = in.some({in.tokens, 6}, 2);
  Tensors r = {in.unwritten({in.tokens, 6}), in.unwritten({in.tokens, in.width}),
               in.fp32({3, 6, in.width}, 3)};
  grouped_product(x, weights, offsets, r[0]);
  grouped_input_gradient(grad, weights, offsets, r[1]);
  grouped_weight_gradient(grad, x, offsets, r[2], /*accumulate=*/true);
  return r;
}

Tensors call_router(const Inputs& in) {
  const int64_t n = in.tokens / 2 * 2;
  const RouterOptions options{.score = RouterScore::sigmoid,
                              .chosen = 3,
                              .groups = 2,
                              .chosen_groups = 1,
                              .normalize = true,
                              .factor = 2.0};
  const at::Tensor logits = in.fp32({n, 8}, 1);
  const at::Tensor counted = in.ints(1, 5).slice(0, 0, n).ne(2).to(at::kFloat);
  Tensors r = {at::zeros({n, 3}, at::device(in.device).dtype(at::kInt)), in.unwritten32({n, 3}),
               in.unwritten64({2, router_columns(8)}), in.unwritten32({n, 8})};
  router_forward(logits, in.fp32({8}, 2, 0.1), counted, options, r[0], r[1], r[2]);
  router_backward(in.fp32({n, 3}, 3), logits, r[0], counted, r[2], options,
                  {.balance_weight = 0.1, .z_weight = 0.01, .scale = in.scalar(0.5)}, r[3]);
  return r;
}

Tensors call_expert_rows(const Inputs& in) {
  const int64_t tokens = in.tokens / 2;
  const ExpertRows rows = sort_by_expert(in.ints(7, 4).slice(0, 0, 2 * tokens).view({tokens, 2}), 4);
  return {gather_rows(in.some({tokens, in.width}, 1), rows),
          combine_rows(in.some({2 * tokens, in.width}, 2), rows)};
}

Tensors call_expert_bias(const Inputs& in) {
  const int64_t rows = in.tokens / 2 * 2;
  const std::vector<int64_t> offsets = {0, 5, 5, rows};
  const RowFactors factors{in.fp32({rows / 2, 2}, 1),
                           in.ints(1, in.tokens).slice(0, 0, rows).flip(0).contiguous()};
  const at::Tensor bias = in.fp32({3, in.width}, 2);
  const at::Tensor grad = in.some({rows, in.width}, 5);
  Tensors r = {in.some({rows, in.width}, 3), in.unwritten32({3, in.width}), in.fp32({rows / 2, 2}, 4)};
  add_expert_bias(r[0], offsets, bias, factors);
  expert_bias_gradient(grad, offsets, factors, r[1]);
  add_factor_gradients(grad, offsets, bias, factors.slots, r[2]);
  return r;
}

Tensors call_linear(const Inputs& in) {
  const at::Tensor x = in.some({in.tokens, in.width}, 1);
  const at::Tensor weight = in.some({11, in.width}, 2);
  const at::Tensor grad = in.some({in.tokens, 11}, 3);
  Tensors r = {in.unwritten({in.tokens, 11}), in.unwritten({in.tokens, in.width}),
               in.unwritten32({11, in.width})};
  linear_product(x, weight, r[0]);
  linear_input_gradient(grad, weight, {}, r[1]);
  linear_weight_gradient(grad, x, r[2], false);
  return r;
}

Tensors call_gated_add(const Inputs& in) {
  const std::vector<int64_t> shape = {in.tokens, in.width};
  const at::Tensor y = in.some(shape, 1);
  const at::Tensor gate = in.fp32({in.tokens}, 2);
  Tensors r = {in.unwritten(shape), in.unwritten(shape), in.unwritten32({in.tokens})};
  gated_add_forward(in.some(shape, 3), y, gate, r[0]);
  gated_add_backward(in.some(shape, 4), y, gate, r[1], r[2]);
  return r;
}

Tensors call_codes(const Inputs& in) {
  const at::Tensor codes = (in.fp32({640}, 1).to(at::kFloat).abs() * 100).to(at::kByte);
  Tensors r = {in.unwritten({640}), in.unwritten({640}), in.unwritten32({600})};
  dequantize_nf4(codes.narrow(0, 0, 320), in.fp32({10}, 2).to(at::kFloat), r[0]);
  dequantize_int8(codes, in.fp32({10}, 3).to(at::kFloat), r[1]);
  dequantize_factors(codes.narrow(0, 0, 600), in.fp32({8}, 4).to(at::kFloat),
                     {.first = 5, .width = 30, .stride = 90}, r[2]);
  return r;
}

/// The type of activations is that of the moments.
Tensors call_updates(const Inputs& in) {
  const UpdateScalars scalars{in.scalar(1), in.scalar(3), in.scalar(0.5), in.scalar(0.8)};
  const int64_t size = 1024;
  const at::Tensor grad = in.fp32({size}, 1);
  Tensors r = {in.fp32({size}, 2), in.some({size}, 3), in.some({size}, 4).abs(), in.fp32({size}, 5),
               in.fp32({size}, 6)};
  adamw_update(r[0], grad, r[1], r[2], 5, 1000, {}, scalars);
  lion_update(r[3], grad, r[4], {}, scalars);
  return r;
}

Tensors call_quantized_update(const Inputs& in) {
  const auto zeros = [&](int64_t size, at::ScalarType type) {
    return at::zeros({size}, at::device(in.device).dtype(type));
  };
  const Tensors moments = {zeros(1024, at::kByte), zeros(4, at::kFloat), zeros(1024, at::kByte),
                           zeros(4, at::kFloat)};
  const at::Tensor parameter = in.fp32({1024}, 7);
  adamw_8bit_update(parameter, in.fp32({1024}, 1), {moments[0], moments[1]}, {moments[2], moments[3]}, {},
                    first_update_scalars(in.device));
  return {parameter, moments[1], moments[3]};
}

Tensors call_reductions(const Inputs& in) {
  const int64_t size = in.tokens * in.width;
  const at::Tensor flat = in.fp32({size}, 1);
  Tensors r;
  for (const NormType type : {NormType::l1, NormType::l2, NormType::l3, NormType::inf}) {
    const at::Tensor terms = r.emplace_back(in.unwritten64({reduce_chunks(size)}));
    const at::Tensor joined = r.emplace_back(in.scalar(0.5));
    const at::Tensor norm = r.emplace_back(in.unwritten64({}));
    norm_terms_by_chunk(flat, type, terms);
    join_norm_terms(type, terms, joined);
    norm_of_terms(type, joined, norm);
  }
  sum_in_order(flat, r.emplace_back(in.unwritten64({})));
  r.push_back(in.scalar(all_finite(flat) ? 1.0 : 0.0));
  r.push_back(in.scalar(all_finite(flat.div(0)) ? 1.0 : 0.0));
  return r;
}

Tensors call_scalars(const Inputs& in) {
  Tensors r;
  const auto result = [&]() -> at::Tensor { return r.emplace_back(in.unwritten64({})); };
  const at::Tensor values = in.fp32({5}, 1).to(at::kDouble);
  for (const double count : {0.0, 4.0}) {
    reciprocal_or_zero(in.scalar(count), result());
    mean_in_order(values, in.scalar(count), result());
  }
  for (const double limit : {0.0, 1.0, 5.0}) clip_coefficient(in.scalar(3.0), limit, result());
  for (const double number : {1.0, std::nan("")}) flag_if_finite(in.scalar(number), in.scalar(2), result());
  return r;
}

}  // namespace

std::span<const KernelCase> kernel_cases() {
  constexpr bool kWide = true;
  static const std::array kCases = {
      KernelCase{{"rms_norm_forward", "rms_norm_backward"}, kWide, call_rms_norm},
      KernelCase{{"bias_forward", "bias_backward"}, kWide, call_bias},
      KernelCase{{"gated_forward", "gated_backward"}, kWide, call_gated},
      KernelCase{{"dropout_add_forward", "dropout_add_backward"}, kWide, call_dropout},
      KernelCase{{"qk_norm_rope_forward", "qk_norm_rope_backward"}, kWide, call_rope},
      KernelCase{{"latent_heads_forward", "latent_heads_backward"}, kWide, call_latent_heads},
      KernelCase{{"attention_forward", "attention_backward", "attention_sink_gradient", "attention_cached"},
                 kWide,
                 call_attention},
      KernelCase{{"cross_entropy", "cap_logits"}, kWide, call_losses},
      KernelCase{{"part_maxima", "part_terms", "part_losses", "cap_logits"}, kWide, call_parts_of_losses},
      KernelCase{{"embedding_forward", "embedding_backward"}, kWide, call_embedding},
      KernelCase{
          {"grouped_product", "grouped_input_gradient", "grouped_weight_gradient"}, kWide, call_grouped},
      KernelCase{{"router_forward", "router_backward"}, kWide, call_router},
      KernelCase{{"gather_rows", "combine_rows"}, kWide, call_expert_rows},
      KernelCase{
          {"add_expert_bias", "expert_bias_gradient", "add_factor_gradients"}, kWide, call_expert_bias},
      KernelCase{{"linear_product", "linear_input_gradient", "linear_weight_gradient"}, kWide, call_linear},
      KernelCase{{"gated_add_forward", "gated_add_backward"}, kWide, call_gated_add},
      KernelCase{{"dequantize_nf4", "dequantize_int8", "dequantize_factors"}, kWide, call_codes},
      KernelCase{{"adamw_update", "lion_update"}, kWide, call_updates},
      KernelCase{{"adamw_8bit_update"}, !kWide, call_quantized_update},
      KernelCase{{"norm_terms_by_chunk", "join_norm_terms", "norm_of_terms", "sum_in_order", "all_finite"},
                 !kWide,
                 call_reductions},
      KernelCase{{"reciprocal_or_zero", "mean_in_order", "clip_coefficient", "flag_if_finite"},
                 !kWide,
                 call_scalars},
  };
  return kCases;
}

}  // namespace stepforge::gpu_check
