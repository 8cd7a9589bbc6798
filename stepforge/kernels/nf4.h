// SPDX-License-Identifier: Apache-2.0
// NF4: each weight is the nearest of 16 numbers times the largest absolute value of its block of kCodeBlock weights
// (arXiv:2305.14314, appendix E). Codes and values are, bit for bit, those of bitsandbytes 0.50 on the CPU. Two weights are in each
// byte, the first one in its upper half.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// values: [kCodeBlock], largest: as in weight_codes.cpp. The results are codes [kCodeBlock / 2] and their factor.
void quantize_nf4_block(const float* values, float largest, uint8_t* codes, float& factor);

/// Parts as in CodedWeights (weight_codes.h). out: [n], fp32 or bf16: products in fp32, rounded to nearest even.
void dequantize_nf4(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out);

}  // namespace stepforge
