// SPDX-License-Identifier: Apache-2.0
// Rows for experts. Each of N tokens has k slots, one for each expert that it takes; each slot is a row. Rows are sorted by
// expert, inside an expert by slot, so their order depends on the choice alone.
//
//   gather:  rows[row of (n, j)] = x[n]
//   combine: out[n] = sum_j rows[row of (n, j)], in the order of j
//
// Each is the backward of the other.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// Where the rows of a choice are.
struct ExpertRows {
  std::vector<int64_t> offsets;  ///< [E + 1]: rows of expert e are [offsets[e], offsets[e + 1])
  at::Tensor slots;              ///< [N k] int32: of each row its slot, n * k + j
  at::Tensor rows;               ///< [N, k] int32: of each slot its row

  int64_t count() const { return offsets.back(); }
};

/// indices: [N, k] int32, the experts of each token. Throws Error on one outside [0, experts).
ExpertRows sort_by_expert(const at::Tensor& indices, int64_t experts);

/// The tokens that each expert has among those whose weight is not 0: [experts] int64. token_weights: [N] fp32.
at::Tensor count_tokens(const at::Tensor& indices, const at::Tensor& token_weights, int64_t experts);

/// x: [N, D] of any type, out: [N k, D], written. No autograd.
void gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);

/// x: [N k, D], out: [N, D], written. With bf16 the sum is fp32, rounded once.
void combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);

void gather_rows_reference(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);
void combine_rows_reference(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out);

}  // namespace stepforge
