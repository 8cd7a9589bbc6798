// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism as operations see it: the part of the vocabulary that a table holds, and exchanges with
// the ranks that hold the other parts. The functions come from outside, so that model code knows no ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/pass_tensors.h"
#include "stepforge/modelspec/tensor_parallel.h"

namespace stepforge {

/// The tokens of a table with `rows` rows: [begin, begin + rows) of `size`.
struct VocabularyPart {
  int64_t begin = 0;
  int64_t size = 0;  ///< tokens of the whole vocabulary; 0: the table has all of them

  /// `rows` if the table has all tokens.
  int64_t tokens(int64_t rows) const { return size > 0 ? size : rows; }
};

/// Combines tensors over the ranks that hold the other parts of a layer. Empty functions if the layer is whole.
/// All tensors are contiguous; results are the same bits on all ranks that get them.
struct TensorExchange {
  TensorParallel parallel = {};
  std::function<void(const at::Tensor&)> sum = {};  ///< in place
  std::function<void(const at::Tensor&)> max = {};  ///< in place, fp32
  /// whole = `slice` of all ranks, one after the other in the first dimension.
  std::function<void(const at::Tensor& slice, const at::Tensor& whole)> gather = {};
  /// slice = the sum over all ranks of this rank's slice of `whole`.
  std::function<void(const at::Tensor& whole, const at::Tensor& slice)> sum_slice = {};

  // Asynchronous tensor parallelism (TensorParallel::async), otherwise empty:
  PassTensors pass = {};
  /// sum = that of the shares of all ranks, in their order; it may be one of them.
  std::function<void(std::span<const at::Tensor> shares, const at::Tensor& sum)> add = {};

  /// Whether layers are divided over ranks.
  bool several() const { return static_cast<bool>(sum); }
};

/// Logits of the whole vocabulary [N, part.size] from those of each part: [N, part's tokens].
at::Tensor of_all_parts(const at::Tensor& logits, const VocabularyPart& part, const TensorExchange& ranks);

}  // namespace stepforge
