// SPDX-License-Identifier: Apache-2.0
// Token embedding: out[n] = factor * weight[tokens[n]]; backward adds factor * grad_out[n] to grad_weight[tokens[n]], in
// token order.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/divided.h"

namespace stepforge {

/// The token of a row of zeros, which has no gradient.
inline constexpr int32_t kNoEmbedding = -1;

/// tokens: int32 [N]; weight: [V, D]; out: [N, D] of weight's type. Throws Error on a token outside the
/// vocabulary, unless it is kNoEmbedding. If weight is a part of the table, rows of tokens of other parts are 0, so that the
/// sum over all parts is the result. No autograd.
void embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out,
                       const VocabularyPart& part = {}, double factor = 1.0);

/// grad_out: [N, D] fp32 or bf16; grad_weight: [V, D] fp32, written (rows without tokens become 0) or, with
/// `accumulate`, added to; tokens of other parts are left out. Each element is summed in token order: the
/// result does not depend on the threads.
void embedding_backward(const at::Tensor& tokens, const at::Tensor& grad_out, const at::Tensor& grad_weight,
                        bool accumulate, const VocabularyPart& part = {}, double factor = 1.0);

}  // namespace stepforge
