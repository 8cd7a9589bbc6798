// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/embedding.h"

#include <ATen/ops/index_select.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

struct RowsOfPart {
  at::Tensor rows;   ///< of each token in the table; 0 for tokens of other parts
  at::Tensor other;  ///< [N, 1] bool: tokens of other parts, and those without a row
};

/// A table of the whole vocabulary keeps tokens outside it, which indexing refuses.
RowsOfPart rows_of_part(const at::Tensor& tokens, int64_t rows, const VocabularyPart& part) {
  const at::Tensor shifted = tokens - part.begin;
  const at::Tensor other =
      part.size == 0 ? tokens.eq(kNoEmbedding) : shifted.lt(0).logical_or(shifted.ge(rows));
  return {shifted.masked_fill(other, 0), other.unsqueeze(1)};
}

}  // namespace

void embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out,
                       const VocabularyPart& part, double factor) {
  check_tensor(tokens, "embedding tokens", {tokens.size(0)}, at::kInt);
  check_shape(weight, "embedding weight", {weight.size(0), weight.size(1)});
  check_tensor(out, "embedding out", {tokens.size(0), weight.size(1)}, weight.scalar_type());
  pick(&KernelTable::embedding_forward, weight)(tokens, weight, out, part, factor);
}

void embedding_backward(const at::Tensor& tokens, const at::Tensor& grad_out, const at::Tensor& grad_weight,
                        bool accumulate, const VocabularyPart& part, double factor) {
  check_tensor(tokens, "embedding tokens", {tokens.size(0)}, at::kInt);
  check_shape(grad_out, "embedding grad_out", {tokens.size(0), grad_out.size(1)});
  check_tensor(grad_weight, "embedding grad_weight", {grad_weight.size(0), grad_out.size(1)},
               compute_type(grad_out));
  pick(&KernelTable::embedding_backward, grad_out)(tokens, grad_out, grad_weight, accumulate, part, factor);
}

void reference::embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out,
                                  const VocabularyPart& part, double factor) {
  const auto [rows, other] = rows_of_part(tokens, weight.size(0), part);
  out.copy_(at::index_select(weight, 0, rows).masked_fill(other, 0) * factor);
}

void reference::embedding_backward(const at::Tensor& tokens, const at::Tensor& grad_out,
                                   const at::Tensor& grad_weight, bool accumulate, const VocabularyPart& part,
                                   double factor) {
  if (!accumulate) grad_weight.zero_();
  const auto [rows, other] = rows_of_part(tokens, grad_weight.size(0), part);
  grad_weight.index_add_(0, rows, grad_out.to(grad_weight.scalar_type()).masked_fill(other, 0) * factor);
}

}  // namespace stepforge
