// SPDX-License-Identifier: Apache-2.0
// fp16 for .cu files: that of CUDA under nvcc, otherwise the part of it that kernels use. See cuda_on_cpu.h.
#pragma once

#include "stepforge/cuda/cuda_on_cpu.h"

#ifdef __CUDACC__

#include <cuda_fp16.h>

#else

#include <bit>
#include <cstdint>

struct __half {
  uint16_t bits = 0;
};

inline float __half2float(__half value) {
  const uint32_t magnitude = (value.bits & 0x7FFFU) << 13;
  const uint32_t sign = (value.bits & 0x8000U) << 16;
  if (magnitude >= 0x0F800000) return std::bit_cast<float>(sign | magnitude | 0x7F800000);  // infinity, NaN
  // The exponents' biases differ by 112; a product with a power of two is exact.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F));
}

/// To the nearest, ties to even.
inline __half __float2half_rn(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  uint32_t half = 0;
  if (magnitude > 0x7F800000) return {0x7FFF};
  if (magnitude >= 0x477FF000) {  // rounds to 65536 or more
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {
    // Subnormal: between 0.5 and 1 fp32 has the spacing of these numbers, so the sum rounds.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000;
  } else {
    half = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1U)) >> 13;
  }
  return {static_cast<uint16_t>(((bits >> 16) & 0x8000U) | half)};
}

#endif

namespace stepforge::cuda {

// As those of elements.h.
__device__ inline float widen(__half value) {
  return __half2float(value);
}
__device__ inline void narrow(float value, __half& to) {
  to = __float2half_rn(value);
}

}  // namespace stepforge::cuda
