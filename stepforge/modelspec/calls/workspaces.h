// SPDX-License-Identifier: Apache-2.0
// What rows of calls share, such as the workspace of gradients of vectors.
#pragma once

#include "stepforge/modelspec/call_kind.h"
#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge {

/// Sums over tokens of `columns` numbers each are computed from a bounded number of partial sums.
inline Workspace partial_sums(int64_t columns) {
  Workspace workspace;
  workspace.chunk_token.fp32 = columns;
  workspace.chunk = cpu::kPartials;
  return workspace;
}

/// Elements of bf16 in the memory of a product [rows, depth] [depth, columns] of bf16.
inline int64_t bf16_product(int64_t depth, int64_t columns) {
  return 2 * cpu::bf16_product_words(depth, columns);
}

/// Gradients of vectors, `elements` in all, are computed beside the gradient of the input, in memory of their own.
inline CallWorkspace vector_gradient(int64_t elements, const Workspace& backward) {
  CallWorkspace made;
  made.backward = backward;
  made.weights.fixed_fp32 = elements;
  made.beside = true;
  made.queued = made.weights;
  return made;
}

/// Elements in the rows of a value, for each token: of the slice, if it has those only. Those of indices count as fp32.
inline Elements elements_of(const LayerValue& value) {
  const int64_t elements = value.width * value.times;
  Elements all;
  (value.type == ElementType::compute ? all.compute : all.fp32) = elements;
  return value.rows == Rows::slice ? all.of_slice() : all;
}

/// For each token that `value` has: of the slice, if it has those only.
inline Elements for_rows_of(const LayerValue& value, const Elements& elements) {
  return value.rows == Rows::slice ? elements.of_slice() : elements;
}

/// A value of the same rows that no gradient flows to.
inline LayerValue beside(const LayerValue& value, int64_t width, ElementType type) {
  LayerValue made = value;
  made.width = width;
  made.type = type;
  made.differentiable = false;
  return made;
}

/// The gradients of the call's weights, summed over the tensor-parallel ranks if they have shares of them.
inline CallExchanges weight_sums(const CallView& view) {
  if (!view.call.sums_weight_gradients) return {};
  int64_t elements = 0;
  for (const CallWeight& weight : view.call.weights) elements += weight.trained ? weight.elements() : 0;
  if (elements == 0) return {};
  return {{}, {{BlockAxis::tensor, ExchangeKind::sum, {}, elements * static_cast<int64_t>(sizeof(float))}}};
}

}  // namespace stepforge
