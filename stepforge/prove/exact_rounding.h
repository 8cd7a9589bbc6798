// SPDX-License-Identifier: Apache-2.0
// The sets of numbers of an exact model (exact_model.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

inline constexpr double kExactLimit = 4.0;  ///< the largest activation, and the largest gradient in units

/// The nearest activations, and the nearest gradients.
at::Tensor to_integers(const at::Tensor& x);
at::Tensor to_gradients(const at::Tensor& x);

}  // namespace stepforge
