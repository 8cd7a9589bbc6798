// SPDX-License-Identifier: Apache-2.0
// Double quantization (QLoRA): the factors of a tensor's blocks of codes (weight_codes.h) as codes of 8 bits. Of each factor the mean of
// all is subtracted; each kFactorBlock of these differences have a scale, their largest absolute value:
//
//   factor = dynamic_code(true)[code] * scale + mean
//
// Codes and decoded factors are, bit for bit, those of bitsandbytes 0.50 on the CPU for the same mean: a difference divided by its scale is
// rounded to one of 65,536 equidistant numbers, and then to the nearest code. There the mean is a sum of fp32 whose last bits depend on
// the number of threads; here it is rounded once.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// All factors of a tensor.
struct FactorCodes {
  at::Tensor codes;   ///< u8 [n]
  at::Tensor scales;  ///< fp32 [1 + ceil(n / kFactorBlock)]: the mean, then the scales
};

/// factors: fp32 [n] on the host. If one is not finite, all that codes stand for are NaN.
FactorCodes quantize_factors(const at::Tensor& factors);

/// The factors of a part of a tensor, in its order: number i is that of block first + i / width * stride + i % width of the tensor. As it
/// is, all of the tensor.
struct FactorPart {
  int64_t first = 0;
  int64_t width = 1;   ///< blocks in a row of the part
  int64_t stride = 1;  ///< blocks in a row of the tensor

  int64_t block(int64_t i) const { return first + i / width * stride + i % width; }
};

/// What codes of a part stand for. codes: u8 [m], scales: of all of the tensor, out: fp32 [m].
void dequantize_factors(const at::Tensor& codes, const at::Tensor& scales, const FactorPart& part,
                        const at::Tensor& out);

}  // namespace stepforge
