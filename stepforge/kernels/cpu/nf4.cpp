// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/nf4.h"

#include <array>

#include "stepforge/base/weight_code.h"
#include "stepforge/kernels/cpu/code_blocks.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/nf4_values.h"

namespace stepforge::cpu {
namespace {

/// The two values of each byte.
struct BytePairs {
  std::array<float, 512> values{};

  constexpr BytePairs() {
    for (size_t byte = 0; byte < 256; ++byte) {
      values[2 * byte] = kNf4Values[byte >> 4];
      values[2 * byte + 1] = kNf4Values[byte & 15];
    }
  }
};

constexpr BytePairs kPairs;

template <typename T>
STEPFORGE_INLINE void dequantize_blocks_body(const uint8_t* codes, const float* factors, T* out,
                                             int64_t blocks) {
  for (int64_t block = 0; block < blocks; ++block) {
    float values[kCodeBlock];
    for (int64_t i = 0; i < kCodeBlock / 2; ++i) {
      const float* pair = kPairs.values.data() + 2 * static_cast<size_t>(codes[block * kCodeBlock / 2 + i]);
      values[2 * i] = pair[0];
      values[2 * i + 1] = pair[1];
    }
    const float factor = factors[block];
#pragma omp simd
    for (int64_t i = 0; i < kCodeBlock; ++i) store(out + block * kCodeBlock + i, values[i] * factor);
  }
}

STEPFORGE_SIMD_CLONES void dequantize_blocks(const uint8_t* codes, const float* factors, float* out,
                                             int64_t blocks) {
  dequantize_blocks_body(codes, factors, out, blocks);
}
STEPFORGE_SIMD_CLONES void dequantize_blocks(const uint8_t* codes, const float* factors, BFloat16* out,
                                             int64_t blocks) {
  dequantize_blocks_body(codes, factors, out, blocks);
}

}  // namespace

void dequantize_nf4(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  decode_blocks(codes, factors, out, [](const uint8_t* from, const float* scales, auto* to, int64_t blocks) {
    dequantize_blocks(from, scales, to, blocks);
  });
}

}  // namespace stepforge::cpu
