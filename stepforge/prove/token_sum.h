// SPDX-License-Identifier: Apache-2.0
// Attention without weights: sums over the tokens of a document, which may be divided over ranks. Exact if the
// values are small integers.
#pragma once

#include "stepforge/nn/context.h"
#include "stepforge/nn/context_exchange.h"

namespace stepforge {

/// Of each of this rank's tokens [tokens, width]: the sum over the tokens that it sees, itself included.
at::Tensor sum_seen_tokens(const at::Tensor& x, const BatchTensors& batch, const ContextExchange& exchange);

/// The gradient: the sum over the tokens that see it.
at::Tensor sum_seeing_tokens(const at::Tensor& x, const BatchTensors& batch, const ContextExchange& exchange);

}  // namespace stepforge
