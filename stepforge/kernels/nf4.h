// SPDX-License-Identifier: Apache-2.0
// NF4: each weight is the nearest of 16 numbers times the largest absolute value of its block of kCodeBlock weights
// (arXiv:2305.14314, appendix E). Codes and values are, bit for bit, those of bitsandbytes 0.50 on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/base/weight_code.h"

namespace stepforge {

/// Two weights in each byte, the first one in its upper half; and the factors of the blocks.
struct Nf4Weights {
  at::Tensor codes;    ///< u8 [n / 2]
  at::Tensor factors;  ///< fp32 [n / kCodeBlock]
};

/// The parts of `stored`, u8 [WeightStorage::bytes(n)]: codes, then factors.
Nf4Weights nf4_parts(const at::Tensor& stored, int64_t n);

/// values: fp32 [n] on the host, n a multiple of kCodeBlock. The results are written, on any device.
void quantize_nf4(const at::Tensor& values, const Nf4Weights& to);

/// out: [n], fp32 or bf16: products in fp32, rounded to nearest even.
void dequantize_nf4(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out);

}  // namespace stepforge
