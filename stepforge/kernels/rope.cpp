// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/rope.h"

#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

/// Rotates the pairs (x_i, x_{i + d/2}). heads: [N, heads, d]; cos, sin: [N, 1, d / 2].
at::Tensor rotate(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = heads.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

at::Tensor rows_of(const at::Tensor& table, const at::Tensor& positions, at::ScalarType type) {
  return table.to(positions.device()).index_select(0, positions).to(type).unsqueeze(1);
}

/// The norm's weight of each q and k head: [H + K, d].
at::Tensor weight_per_head(const AttentionShape& shape, const QkNorm& norm, at::ScalarType type) {
  return at::cat({norm.q_weight.to(type).expand({shape.heads, shape.head_dim}),
                  norm.k_weight.to(type).expand({shape.kv_heads, shape.head_dim})});
}

void check_operands(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                    const RopeTable& table, const QkNorm& norm, const at::Tensor& rstd) {
  check_shape(qkv, "rope qkv", {qkv.size(0), shape.qkv_width()});
  check_tensor(positions, "rope positions", {qkv.size(0)}, at::kInt);
  if (shape.head_dim % 2 != 0) throw Error(format("rope: head_dim = {}: must be even", shape.head_dim));
  check_tensor(table.cos, "rope table", {table.cos.size(0), shape.head_dim / 2}, at::kFloat);
  check_tensor(table.sin, "rope table", table.cos.sizes(), at::kFloat);
  if (!norm.present()) return;
  check_shape(norm.q_weight, "qk_norm q_weight", {shape.head_dim});
  check_tensor(norm.k_weight, "qk_norm k_weight", {shape.head_dim}, norm.q_weight.scalar_type());
  check_tensor(rstd, "qk_norm rstd", {qkv.size(0), shape.heads + shape.kv_heads}, compute_type(qkv));
}

}  // namespace

at::Tensor rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling) {
  if (head_dim < 2 || head_dim % 2 != 0)
    throw Error(format("rope: head_dim = {}: must be even and positive", head_dim));
  const at::Tensor exponent =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  at::Tensor frequency = at::pow(theta, exponent).reciprocal();
  if (scaling.kind == RopeScaling::Kind::none) return frequency;

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

RopeTable make_rope_table(int64_t max_position, int64_t head_dim, double theta, const RopeScaling& scaling) {
  const at::Tensor positions = at::arange(max_position, at::kLong).to(at::kFloat).unsqueeze(1);
  const at::Tensor angles = positions * rope_frequencies(head_dim, theta, scaling).unsqueeze(0);
  return {angles.cos(), angles.sin()};
}

void qk_norm_rope_forward(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& positions,
                          const RopeTable& table, const QkNorm& norm, const at::Tensor& out,
                          const at::Tensor& rstd) {
  check_operands(qkv, shape, positions, table, norm, rstd);
  check_tensor(out, "rope out", qkv.sizes(), qkv.scalar_type());
  if (has_cpu_kernel(qkv)) {
    cpu::qk_norm_rope_forward(qkv, shape, positions, table, norm, out, rstd);
  } else {
    qk_norm_rope_forward_reference(qkv, shape, positions, table, norm, out, rstd);
  }
}

void qk_norm_rope_backward(const at::Tensor& grad_qkv, const at::Tensor& qkv, const AttentionShape& shape,
                           const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                           const at::Tensor& rstd, const at::Tensor& grad_q_weight,
                           const at::Tensor& grad_k_weight) {
  check_operands(grad_qkv, shape, positions, table, norm, rstd);
  if (norm.present()) {
    check_tensor(qkv, "qk_norm qkv", grad_qkv.sizes(), grad_qkv.scalar_type());
    check_tensor(grad_q_weight, "qk_norm grad_q_weight", {shape.head_dim}, compute_type(grad_qkv));
    check_tensor(grad_k_weight, "qk_norm grad_k_weight", {shape.head_dim}, compute_type(grad_qkv));
  }
  if (has_cpu_kernel(grad_qkv)) {
    cpu::qk_norm_rope_backward(grad_qkv, qkv, shape, positions, table, norm, rstd, grad_q_weight,
                               grad_k_weight);
  } else {
    qk_norm_rope_backward_reference(grad_qkv, qkv, shape, positions, table, norm, rstd, grad_q_weight,
                                    grad_k_weight);
  }
}

void qk_norm_rope_forward_reference(const at::Tensor& qkv, const AttentionShape& shape,
                                    const at::Tensor& positions, const RopeTable& table, const QkNorm& norm,
                                    const at::Tensor& out, const at::Tensor& rstd) {
  const at::ScalarType type = compute_type(qkv);
  const int64_t rotated = shape.heads + shape.kv_heads;
  at::Tensor heads = qkv.view({qkv.size(0), -1, shape.head_dim}).slice(1, 0, rotated).to(type);
  if (norm.present()) {
    rstd.copy_(heads.square().mean(-1).add(norm.eps).rsqrt());
    heads = heads * rstd.unsqueeze(-1) * weight_per_head(shape, norm, type);
  }
  const at::Tensor result =
      rotate(heads, rows_of(table.cos, positions, type), rows_of(table.sin, positions, type));
  out.copy_(qkv);
  out.view({qkv.size(0), -1, shape.head_dim}).slice(1, 0, rotated).copy_(result);
}

void qk_norm_rope_backward_reference(const at::Tensor& grad_qkv, const at::Tensor& qkv,
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
    const at::Tensor normed = heads * rstd.unsqueeze(-1);
    const at::Tensor grad_weight = (grad * normed).sum(0);
    grad_q_weight.copy_(grad_weight.slice(0, 0, shape.heads).sum(0));
    grad_k_weight.copy_(grad_weight.slice(0, shape.heads, rotated).sum(0));
    grad = grad * weight_per_head(shape, norm, type);
    grad = rstd.unsqueeze(-1) * (grad - normed * (grad * normed).mean(-1, /*keepdim=*/true));
  }
  target.copy_(grad);
}

}  // namespace stepforge
