// SPDX-License-Identifier: Apache-2.0
// Small linear layers whose product is fp32 whatever the compute dtype: routers and gates. Not public. They use the products
// of experts, of which there is one, because those do not depend on the number of threads.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "stepforge/kernels/grouped_product.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

inline at::Tensor widen(const at::Tensor& x) {
  return x.detach().to(compute_type(x));
}

/// out [N, out] fp32 = x [N, D] weight^T.
inline void wide_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  grouped_product(widen(x), widen(weight).unsqueeze(0), std::array<int64_t, 2>{0, x.size(0)}, out);
}

/// out [N, D], the gradient of x in its type, for `gradient` [N, out] fp32.
inline void wide_input_gradient(const at::Tensor& gradient, const at::Tensor& weight, const at::Tensor& out) {
  const bool wide = out.scalar_type() == gradient.scalar_type();
  const at::Tensor product = wide ? out : at::empty(out.sizes(), gradient.options());
  grouped_input_gradient(gradient, widen(weight).unsqueeze(0), std::array<int64_t, 2>{0, gradient.size(0)},
                         product);
  if (!wide) out.copy_(product);
}

/// target [out, D] fp32 = gradient [N, out]^T x, or added to it.
inline void wide_weight_gradient(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& target,
                                 bool accumulate) {
  grouped_weight_gradient(gradient, widen(x), std::array<int64_t, 2>{0, x.size(0)}, target.unsqueeze(0),
                          accumulate);
}

/// Contributes the gradient of the weight.
inline void add_wide_product(Parameter& weight, const at::Tensor& gradient, const at::Tensor& x) {
  weight.write([gradient, x = x.detach()](const at::Tensor& target, bool accumulate) {
    wide_weight_gradient(gradient, x, target, accumulate);
  });
}

}  // namespace stepforge
