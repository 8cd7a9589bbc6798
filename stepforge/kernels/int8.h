// SPDX-License-Identifier: Apache-2.0
// Eight bits for each weight: a whole number from -127 to 127 times the factor of its block of kCodeBlock weights, which is their
// largest absolute value / 127. A weight is off by half a factor at most. Each byte is a signed number.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// values: [kCodeBlock], largest: as in weight_codes.cpp. The results are codes [kCodeBlock], of value / factor rounded to nearest
/// even, and their factor. A factor of zero or NaN has codes of zero.
void quantize_int8_block(const float* values, float largest, uint8_t* codes, float& factor);

/// Parts as in CodedWeights (weight_codes.h). out: [n], fp32 or bf16: products in fp32, rounded to nearest even.
void dequantize_int8(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out);

}  // namespace stepforge
