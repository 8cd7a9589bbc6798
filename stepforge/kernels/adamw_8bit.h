// SPDX-License-Identifier: Apache-2.0
// AdamW (adamw.h) with moments of 8 bits per element, quantized in blocks of 256 elements (Dettmers et al. 2022, "8-bit
// Optimizers via Block-wise Quantization", arXiv 2110.02861, sections 2.1 and 2.2, dynamic quantization; the update is
// computed in fp32):
//
//   moment = code[index] * scale       scale is the largest absolute value of the block
//   code:    dynamic_code.h, signed for the first moment
//
// Values are rounded to the nearest in the code. One rule is ours: a second moment above 0 is never rounded to 0, since
// the next update might then be divided by eps alone.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/adamw.h"
#include "stepforge/modelspec/slot_layout.h"

namespace stepforge {

/// indices: uint8 [n]; scales: fp32 [n / kQuantizedBlock]. Zeros are a moment of 0.
struct QuantizedMoment {
  const at::Tensor& indices;
  const at::Tensor& scales;
};

/// Updates all elements: `parameter` and `grad` are fp32 [n], where n is a multiple of kQuantizedBlock. Throws Error
/// otherwise, and on the CPU if scalars.number < 1.
void adamw_8bit_update(const at::Tensor& parameter, const at::Tensor& grad, const QuantizedMoment& first,
                       const QuantizedMoment& second, const AdamWOptions& options,
                       const UpdateScalars& scalars);

}  // namespace stepforge
