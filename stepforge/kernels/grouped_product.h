// SPDX-License-Identifier: Apache-2.0
// Products of rows with the weight of the expert that each row belongs to. Rows are sorted by expert: those of
// expert e are [offsets[e], offsets[e + 1]).
//
//   out[n]          = weights[e] x[n]
//   grad_x[n]       = weights[e]^T grad_out[n]
//   grad_weights[e] = sum over the rows of e of grad_out[n] x[n]^T
//
// On the CPU each expert's product is cut into tiles, whose number depends on the shapes and offsets alone, and one
// thread computes a tile: no result depends on the number of threads, and experts of uneven sizes keep all busy. In fp32 each
// element is a sum in the order of its terms, so that a row's results do not depend on the other rows of its expert either.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// x: [N, in], weights: [E, out, in], out: [N, out], all of one type: fp32, bf16 or fp64. offsets: E + 1 numbers from 0
/// to N that do not decrease, otherwise Error. An expert may have no rows. No autograd.
void grouped_product(const at::Tensor& x, const at::Tensor& weights, std::span<const int64_t> offsets,
                     const at::Tensor& out);

/// grad_out: [N, out], grad_x: [N, in], written; both of the type of weights.
void grouped_input_gradient(const at::Tensor& grad_out, const at::Tensor& weights,
                            std::span<const int64_t> offsets, const at::Tensor& grad_x);

/// grad_weights: [E, out, in] fp32 (of fp64: fp64), written or, with `accumulate`, added to. The gradient of an expert
/// without rows is written as 0 or left as it is. Sums of bf16 are fp32, and never rounded to bf16 by the CPU's kernel.
void grouped_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                             std::span<const int64_t> offsets, const at::Tensor& grad_weights,
                             bool accumulate);

}  // namespace stepforge
