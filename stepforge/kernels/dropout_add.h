// SPDX-License-Identifier: Apache-2.0
// Residual connection with dropout: out = residual + keep(x) * x / (1 - p).
//
// Whether an element is kept is a pure function of (key, row id, position in the row, channel): it does not
// depend on the rank, the micro-batch or the row's index in the batch. Channel c of token n is kept when
// word c % 4 of philox(key, position[n] << 32 | c / 4, row_id[n]) is at least p * 2^32.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

struct DropoutKey {
  uint64_t key = 0;
};

/// The key of one optimizer step; each dropout of the model derives its own with dropout_key_of_site.
DropoutKey dropout_key_of_step(uint64_t seed, uint64_t step);

/// `site` is the number of a dropout in the model: layer * sites per layer + index in the layer.
DropoutKey dropout_key_of_site(DropoutKey step_key, uint64_t site);

/// The position of each token of the batch in the data, and of its first element among the channels of all ranks.
struct TokenCoords {
  at::Tensor row_ids;    ///< int64 [N]: number of the token's row in the whole data order
  at::Tensor positions;  ///< int32 [N]: position within that row
  int64_t channel = 0;   ///< not negative
};

/// x, residual, out: [N, D] of one type, fp32 or bf16; 0 <= p < 1. out may be the same memory as x or
/// residual. With p == 0 the result is x + residual and `coords` is not read. No autograd.
void dropout_add_forward(const at::Tensor& x, const at::Tensor& residual, double p, DropoutKey key,
                         const TokenCoords& coords, const at::Tensor& out);

/// grad_x = keep * grad_out / (1 - p); may be the same memory. (The residual's gradient is grad_out itself.)
void dropout_add_backward(const at::Tensor& grad_out, double p, DropoutKey key, const TokenCoords& coords,
                          const at::Tensor& grad_x);

}  // namespace stepforge
