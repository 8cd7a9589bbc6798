// SPDX-License-Identifier: Apache-2.0
// The sinks of some heads of a layer, in forward and backward. Not public.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/ops/zeros.h>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

struct AttentionSinks {
  Parameter* parameter = nullptr;  ///< [heads of the layer]; null: it has none
  int64_t first = 0;               ///< the first of the heads that attend here

  /// [heads of `shape`], of the compute type; undefined if there are none.
  at::Tensor values(const AttentionShape& shape) const {
    if (parameter == nullptr) return {};
    const at::Tensor all = parameter->value().detach();
    return all.narrow(0, first, shape.heads).to(compute_type(all)).contiguous();
  }

  /// Contributes the gradient of a backward, whose arguments are those of attention_sink_gradient().
  void add_gradient(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& lse,
                    const AttentionShape& shape, std::span<const AttentionRange> ranges) const {
    if (parameter == nullptr || !parameter->trained()) return;
    const at::Tensor gradient = at::zeros({parameter->value().size(0)}, lse.options());
    attention_sink_gradient(grad_out, out, lse, values(shape), shape, ranges,
                            gradient.narrow(0, first, shape.heads));
    parameter->add_gradient(gradient);
  }
};

}  // namespace stepforge
