// SPDX-License-Identifier: Apache-2.0
// What experts do with tokens.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace stepforge {

struct RoutedTokens {
  at::Tensor weights;  ///< [N, k] fp32
  at::Tensor indices;  ///< [N, k] int32, the experts of each token; without a gradient
};

/// Of tokens [N, D] the sum over the experts of each, times their weights. Experts are numbered among those of this rank.
using ExpertFunction = std::function<at::Tensor(const at::Tensor& tokens, const RoutedTokens& routed)>;

}  // namespace stepforge
