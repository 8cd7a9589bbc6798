// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/int8.h"

#include "stepforge/base/weight_code.h"
#include "stepforge/kernels/cpu/code_blocks.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

template <typename T>
STEPFORGE_INLINE void scale_bytes_body(const int8_t* codes, const float* factors, T* out, int64_t blocks) {
  for (int64_t block = 0; block < blocks; ++block) {
    const float factor = factors[block];
#pragma omp simd
    for (int64_t i = 0; i < kCodeBlock; ++i)
      store(out + block * kCodeBlock + i, static_cast<float>(codes[block * kCodeBlock + i]) * factor);
  }
}

STEPFORGE_SIMD_CLONES void scale_bytes(const int8_t* codes, const float* factors, float* out,
                                       int64_t blocks) {
  scale_bytes_body(codes, factors, out, blocks);
}
STEPFORGE_SIMD_CLONES void scale_bytes(const int8_t* codes, const float* factors, BFloat16* out,
                                       int64_t blocks) {
  scale_bytes_body(codes, factors, out, blocks);
}

}  // namespace

void dequantize_int8(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  decode_blocks(codes, factors, out, [](const uint8_t* from, const float* scales, auto* to, int64_t blocks) {
    scale_bytes(reinterpret_cast<const int8_t*>(from), scales, to, blocks);
  });
}

}  // namespace stepforge::cpu
