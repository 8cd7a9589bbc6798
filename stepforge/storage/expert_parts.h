// SPDX-License-Identifier: Apache-2.0
// Experts that are divided into parts on neighbouring ranks: each part counts as an expert, which takes the rows of the whole one.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// A choice among experts, as a choice among their parts.
struct PartChoice {
  at::Tensor weights;   ///< [N, k parts] fp32
  at::Tensor indices;   ///< [N, k parts] int32, by the ranks that have the parts
  int64_t experts = 0;  ///< parts of all experts
};

/// The number of experts of which a rank has a part if `experts` are spread evenly over `ranks`, `parts` for the parts of each.
/// Throws Error if they cannot be.
int64_t experts_per_rank(int64_t experts, int64_t parts, int64_t ranks);

/// weights and indices [N, k]: the choice among `experts` experts, which are spread evenly over `ranks` ranks. Ranks with the
/// parts of the same experts are neighbours. With one part nothing is copied. Throws Error if they cannot be spread evenly.
PartChoice choose_parts(const at::Tensor& weights, const at::Tensor& indices, int64_t experts, int64_t parts,
                        int64_t ranks);

/// The gradient of weights [N, k], from the gradient of the weights of parts.
at::Tensor sum_of_parts(const at::Tensor& gradient, int64_t parts);

}  // namespace stepforge
