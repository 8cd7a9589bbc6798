// SPDX-License-Identifier: Apache-2.0
// The norms that a call kMagnitude (modelspec/calls/magnitude.h) divides by. Not public.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/divided.h"
#include "stepforge/modelspec/call_list.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// [rows of W] fp32: the norms of the rows of W + scale B A, those of parts without a magnitude 1. `weights` are those of the
/// call, gathered; `scratch`: [magnitude_row::scratch()] of the same type, overwritten. A collective of `tensor` if the
/// columns of W are divided.
at::Tensor weight_norms(const Call& call, std::span<Parameter* const> weights, const TensorExchange& tensor,
                        const at::Tensor& scratch);

/// The memory for it.
at::Tensor weight_norm_scratch(const Call& call, std::span<Parameter* const> weights);

}  // namespace stepforge
