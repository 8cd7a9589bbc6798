// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/rms_norm.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

/// Rotates the pairs (x_i, x_{i + d/2}). heads: [N, heads, d]; cos, sin: [N, 1, d / 2].
at::Tensor rotate(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = heads.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

at::Tensor rows_of(const at::Tensor& table, const at::Tensor& positions, at::ScalarType type) {
  return table.index_select(0, positions).to(type).unsqueeze(1);
}

/// The norm's factor of each q and k head: [H + K, d].
at::Tensor scale_per_head(const AttentionShape& shape, const QkNorm& norm, at::ScalarType type) {
  const auto of_heads = [&](const at::Tensor& weight, int64_t heads) {
    return norm_scale(weight, norm.offset, type).view({-1, shape.head_dim}).expand({heads, shape.head_dim});
  };
  return at::cat({of_heads(norm.q_weight, shape.heads), of_heads(norm.k_weight, shape.kv_heads)});
}

/// The mean of heads [N, H + K, d] over what is normed together, for each head: [N, H + K, 1].
at::Tensor mean_per_head(const at::Tensor& heads, const AttentionShape& shape, const QkNorm& norm) {
  const auto of_heads = [&](int64_t first, int64_t count, int64_t span) {
    return heads.narrow(1, first, count)
        .reshape({heads.size(0), count / span, span * shape.head_dim})
        .mean(-1, /*keepdim=*/true)
        .repeat_interleave(span, 1);
  };
  return at::cat({of_heads(0, shape.heads, norm.q_span(shape)),
                  of_heads(shape.heads, shape.kv_heads, norm.k_span(shape))},
                 1);
}

/// rstd [N, norms], of each head: [N, H + K, 1].
at::Tensor rstd_per_head(const at::Tensor& rstd, const AttentionShape& shape, const QkNorm& norm) {
  const int64_t q_norms = shape.heads / norm.q_span(shape);
  return at::cat({rstd.slice(1, 0, q_norms).repeat_interleave(norm.q_span(shape), 1),
                  rstd.slice(1, q_norms).repeat_interleave(norm.k_span(shape), 1)},
                 1)
      .unsqueeze(-1);
}

/// One number of each norm, from those of each head [N, H + K, 1].
at::Tensor per_norm(const at::Tensor& heads, const AttentionShape& shape, const QkNorm& norm) {
  const at::Tensor flat = heads.squeeze(-1);
  return at::cat({flat.slice(1, 0, shape.heads, norm.q_span(shape)),
                  flat.slice(1, shape.heads, shape.heads + shape.kv_heads, norm.k_span(shape))},
                 1);
}

at::Tensor llama3_frequencies(const at::Tensor& frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position);
  const double longest = original / scaling.low_freq_factor;
  const double shortest = original / scaling.high_freq_factor;
  const at::Tensor wavelength = frequency.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor scaled = at::where(wavelength.gt(longest), frequency / scaling.factor, frequency);
  const at::Tensor smooth = (wavelength.reciprocal() * original - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth) * scaled / scaling.factor + smooth * scaled;
  const at::Tensor medium =
      wavelength.lt(shortest).logical_not().logical_and(wavelength.gt(longest).logical_not());
  return at::where(medium, smoothed, scaled);
}

/// period: theta^(2 i / head_dim). Between the frequencies that turn beta_fast and beta_slow times in the original
/// context, a ramp leads from the unchanged ones to those divided by the factor.
at::Tensor yarn_frequencies(const at::Tensor& period, double theta, const RopeScaling& scaling) {
  const auto pairs = period.numel();
  const auto width = static_cast<double>(2 * pairs);
  const auto index_of_turns = [&](double turns) {
    const double original = static_cast<double>(scaling.original_max_position);
    return width * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double begin = index_of_turns(scaling.beta_fast);
  double end = index_of_turns(scaling.beta_slow);
  if (scaling.truncate) {
    begin = std::floor(begin);
    end = std::ceil(end);
  }
  begin = std::max(begin, 0.0);
  end = std::min(end, width - 1);
  if (begin == end) end += 0.001;
  const at::Tensor ramp = ((at::arange(pairs, period.options()) - begin) / (end - begin)).clamp(0, 1);
  const at::Tensor unchanged = 1 - ramp;
  return (period * scaling.factor).reciprocal() * (1 - unchanged) + period.reciprocal() * unchanged;
}

at::Tensor longrope_frequencies(const at::Tensor& period, const RopeScaling& scaling) {
  const auto pairs = static_cast<std::size_t>(period.numel());
  if (scaling.divisors.size() != pairs)
    throw Error(format("rope: {} divisors for {} frequencies", scaling.divisors.size(), pairs));
  return (at::tensor(scaling.divisors, period.options().dtype(at::kDouble)).to(at::kFloat) * period)
      .reciprocal();
}

/// By which cosines and sines are multiplied.
double table_factor(const RopeScaling& scaling) {
  const bool is_longrope = scaling.type == RopeScalingType::longrope;
  if (scaling.type != RopeScalingType::yarn && !is_longrope) return 1.0;
  if (scaling.attention_factor > 0.0) return scaling.attention_factor;
  if (is_longrope) {
    const auto original = static_cast<double>(scaling.original_max_position);
    return scaling.factor <= 1.0 ? 1.0 : std::sqrt(1 + std::log(scaling.factor) / std::log(original));
  }
  const auto growth = [&](double share) {
    return scaling.factor <= 1.0 ? 1.0 : 0.1 * share * std::log(scaling.factor) + 1.0;
  };
  const bool both = scaling.mscale > 0.0 && scaling.mscale_all_dim > 0.0;
  return both ? growth(scaling.mscale) / growth(scaling.mscale_all_dim) : growth(1.0);
}

void check_span(const char* name, const at::Tensor& weight, int64_t heads, const AttentionShape& shape) {
  const int64_t size = weight.numel();
  if (size == shape.head_dim || size == heads * shape.head_dim) return;
  throw Error(format("{}: {} elements: must be {} for each head or {} for all heads", name, size,
                     shape.head_dim, heads * shape.head_dim));
}

void check_operands(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                    const RopeTable& table, const QkNorm& norm, const at::Tensor& rstd) {
  check_shape(qkv, "rope qkv", {qkv.size(0), shape.qkv_width()});
  check_tensor(positions, "rope positions", {qkv.size(0)}, at::kInt);
  if (shape.head_dim % 2 != 0) throw Error(format("rope: head_dim = {}: must be even", shape.head_dim));
  check_tensor(table.cos, "rope table", {table.cos.size(0), shape.head_dim / 2}, at::kFloat);
  check_tensor(table.sin, "rope table", table.cos.sizes(), at::kFloat);
  if (!norm.present()) return;
  check_span("qk_norm q_weight", norm.q_weight, shape.heads, shape);
  check_span("qk_norm k_weight", norm.k_weight, shape.kv_heads, shape);
  check_tensor(rstd, "qk_norm rstd", {qkv.size(0), norm.count(shape)}, compute_type(qkv));
}

}  // namespace

at::Tensor rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling) {
  if (head_dim < 2 || head_dim % 2 != 0)
    throw Error(format("rope: head_dim = {}: must be even and positive", head_dim));
  const at::Tensor exponent =
      at::arange(0, head_dim, 2, at::device(at::kCPU).dtype(at::kLong)).to(at::kFloat) /
      static_cast<double>(head_dim);
  const at::Tensor period = at::pow(theta, exponent);
  switch (scaling.type) {
    case RopeScalingType::none:
    case RopeScalingType::dynamic:
      break;
    case RopeScalingType::linear:
      return period.reciprocal() / scaling.factor;
    case RopeScalingType::llama3:
      return llama3_frequencies(period.reciprocal(), scaling);
    case RopeScalingType::yarn:
      return yarn_frequencies(period, theta, scaling);
    case RopeScalingType::longrope:
      return longrope_frequencies(period, scaling);
  }
  return period.reciprocal();
}

RopeTable make_rope_table(int64_t max_position, int64_t head_dim, double theta, const RopeScaling& scaling,
                          at::Device device) {
  const at::Tensor positions =
      at::arange(max_position, at::device(at::kCPU).dtype(at::kLong)).to(at::kFloat).unsqueeze(1);
  const at::Tensor angles = positions * rope_frequencies(head_dim, theta, scaling).unsqueeze(0);
  const double factor = table_factor(scaling);
  if (factor == 1.0) return {angles.cos().to(device), angles.sin().to(device)};
  return {(angles.cos() * factor).to(device), (angles.sin() * factor).to(device)};
}

void qk_norm_rope_forward(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                          const RopeTable& table, const QkNorm& norm, const at::Tensor& out,
                          const at::Tensor& rstd) {
  check_operands(qkv, shape, positions, table, norm, rstd);
  check_tensor(out, "rope out", qkv.sizes(), qkv.scalar_type());
  pick(&KernelTable::qk_norm_rope_forward, qkv)(qkv, shape, positions, table, norm, out, rstd);
}

void qk_norm_rope_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                           const at::Tensor& rstd, const at::Tensor& grad_q_weight,
                           const at::Tensor& grad_k_weight) {
  check_operands(grad_qkv, shape, positions, table, norm, rstd);
  if (norm.present()) {
    check_tensor(qkv, "qk_norm qkv", grad_qkv.sizes(), grad_qkv.scalar_type());
    check_tensor(grad_q_weight, "qk_norm grad_q_weight", norm.q_weight.sizes(), compute_type(grad_qkv));
    check_tensor(grad_k_weight, "qk_norm grad_k_weight", norm.k_weight.sizes(), compute_type(grad_qkv));
  }
  pick(&KernelTable::qk_norm_rope_backward, grad_qkv)(grad_qkv, qkv, shape, positions, table, norm, rstd,
                                                      grad_q_weight, grad_k_weight);
}

void reference::qk_norm_rope_forward(const at::Tensor& qkv, const AttentionShape& shape,
                                     const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                                     const at::Tensor& out, const at::Tensor& rstd) {
  const at::ScalarType type = compute_type(qkv);
  const int64_t rotated = shape.heads + shape.kv_heads;
  at::Tensor heads = qkv.view({qkv.size(0), -1, shape.head_dim}).slice(1, 0, rotated).to(type);
  if (norm.present()) {
    rstd.copy_(per_norm(mean_per_head(heads.square(), shape, norm).add(norm.eps).rsqrt(), shape, norm));
    heads = heads * rstd_per_head(rstd, shape, norm) * scale_per_head(shape, norm, type);
  }
  const at::Tensor result =
      rotate(heads, rows_of(table.cos, positions, type), rows_of(table.sin, positions, type));
  out.copy_(qkv);
  out.view({qkv.size(0), -1, shape.head_dim}).slice(1, 0, rotated).copy_(result);
}

void reference::qk_norm_rope_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv,
                                      const AttentionShape& shape, const at::Tensor& positions,
                                      const RopeTable& table, const QkNorm& norm, const at::Tensor& rstd,
                                      const at::Tensor& grad_q_weight, const at::Tensor& grad_k_weight) {
  const at::ScalarType type = compute_type(grad_qkv);
  const int64_t rotated = shape.heads + shape.kv_heads;
  const at::Tensor target = grad_qkv.view({grad_qkv.size(0), -1, shape.head_dim}).slice(1, 0, rotated);
  // The transpose of a rotation is the rotation by the opposite angle.
  at::Tensor grad =
      rotate(target.to(type), rows_of(table.cos, positions, type), -rows_of(table.sin, positions, type));
  if (norm.present()) {
    const at::Tensor heads = qkv.view({qkv.size(0), -1, shape.head_dim}).slice(1, 0, rotated).to(type);
    const at::Tensor scale = rstd_per_head(rstd, shape, norm);
    const at::Tensor normed = heads * scale;
    const at::Tensor grad_weight = (grad * normed).sum(0);
    const auto sum_to = [&](const at::Tensor& target, int64_t begin, int64_t end) {
      target.copy_(grad_weight.slice(0, begin, end).reshape({-1, target.numel()}).sum(0));
    };
    sum_to(grad_q_weight, 0, shape.heads);
    sum_to(grad_k_weight, shape.heads, rotated);
    grad = grad * scale_per_head(shape, norm, type);
    grad = scale * (grad - normed * mean_per_head(grad * normed, shape, norm));
  }
  target.copy_(grad);
}

}  // namespace stepforge
