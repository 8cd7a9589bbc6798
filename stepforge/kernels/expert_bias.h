// SPDX-License-Identifier: Apache-2.0
// Biases of experts, of rows that are sorted by expert: those of expert e are [offsets[e], offsets[e + 1]). Each row may
// have a factor, the weight with which its token takes the expert: factor[row] = weights[slots[row]], or 1 without weights.
//
//   rows[r]          = rows[r] + factor[r] bias[e]
//   grad_bias[e]     = sum over the rows of e of factor[r] grad[r]
//   grad_weights[slots[r]] += grad[r] . bias[e]
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// The factors of rows. weights: [N, k] fp32 (fp64 rows: fp64), slots: [N k] int32; both undefined if all are 1.
struct RowFactors {
  at::Tensor weights = {};
  at::Tensor slots = {};
};

/// In place. rows: [R, W], or these columns of a wider tensor, fp32, bf16 or fp64; bias: [E, W] of the compute type; offsets:
/// E + 1 numbers from 0 to R that do not decrease. No autograd.
void add_expert_bias(const at::Tensor& rows, std::span<const int64_t> offsets, const at::Tensor& bias,
                     const RowFactors& factors);

/// grad: as the rows above. grad_bias: [E, W] of the compute type, written. Each sum has the order of its rows.
void expert_bias_gradient(const at::Tensor& grad, std::span<const int64_t> offsets, const RowFactors& factors,
                          const at::Tensor& grad_bias);

/// Adds the gradients of the weights to grad_weights [N, k].
void add_factor_gradients(const at::Tensor& grad, std::span<const int64_t> offsets, const at::Tensor& bias,
                          const at::Tensor& slots, const at::Tensor& grad_weights);

}  // namespace stepforge
