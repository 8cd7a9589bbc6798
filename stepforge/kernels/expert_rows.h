// SPDX-License-Identifier: Apache-2.0
// Rows for experts. Each of N tokens has k slots, one for each expert that it takes; each slot is a row. Rows are sorted by
// expert, inside an expert by slot, so their order depends on the choice alone.
//
//   gather:  rows[row of (n, j)] = x[n]
//   combine: out[n] = sum_j rows[row of (n, j)], in the order of j
//
// Each is the backward of the other. A rank may have the rows of some slots only: the others add nothing.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

/// Where the rows of a choice are.
struct ExpertRows {
  std::vector<int64_t> offsets;  ///< [E + 1]: rows of expert e are [offsets[e], offsets[e + 1])
  at::Tensor slots;              ///< [R] int32: of each row its slot, n * k + j
  at::Tensor rows;               ///< [N, k] int32: of each slot its row; -1: it has none

  int64_t count() const { return offsets.back(); }
};

/// indices: [N, k] int32, the experts of each token. Throws Error on one outside [0, experts).
void require_experts(const at::Tensor& indices, int64_t experts);

/// ExpertRows::offsets of these choices: [experts + 1]. Throws as require_experts().
std::vector<int64_t> expert_offsets(const at::Tensor& indices, int64_t experts);

/// Throws as require_experts().
ExpertRows sort_by_expert(const at::Tensor& indices, int64_t experts);

/// Of the choices [ranks N, k] of several ranks, one after another, the rows for the experts `own` alone: sorted by rank, then
/// by expert, inside an expert by slot. offsets: [ranks * own.size() + 1], of each rank the experts. What is none of `own`,
/// such as -1, has no row.
ExpertRows select_rows(const at::Tensor& indices, const ShardRange& own, int64_t ranks);

/// The tokens that each expert has among those whose weight is not 0: [experts] int64. token_weights: [N] fp32.
at::Tensor count_tokens(const at::Tensor& indices, const at::Tensor& token_weights, int64_t experts);

/// x: [N, D] of any type, out: [R, D], written. No autograd.
void gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);

/// x: [R, D], out: [N, D], written. With bf16 the sum is fp32, rounded once.
void combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);

/// The same as new tensors.
at::Tensor gather_rows(const at::Tensor& x, const ExpertRows& rows);
at::Tensor combine_rows(const at::Tensor& x, const ExpertRows& rows);

}  // namespace stepforge
