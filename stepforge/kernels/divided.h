// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism as operations see it: the part of the vocabulary that a table holds, and sums over the
// ranks that hold the other parts. The functions come from outside, so that model code knows no ranks.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// The tokens of a table with `rows` rows: [begin, begin + rows) of `size`.
struct VocabularyPart {
  int64_t begin = 0;
  int64_t size = 0;  ///< tokens of the whole vocabulary; 0: the table has all of them

  /// `rows` if the table has all tokens.
  int64_t tokens(int64_t rows) const { return size > 0 ? size : rows; }
};

/// Combines tensors over the ranks that hold the other parts of a layer. Empty functions if the layer is whole.
/// Both work in place and give the same bits on all ranks.
struct TensorSums {
  std::function<void(const at::Tensor&)> sum;
  std::function<void(const at::Tensor&)> max;  ///< fp32

  /// Whether layers are divided over ranks.
  bool several() const { return static_cast<bool>(sum); }
};

}  // namespace stepforge
