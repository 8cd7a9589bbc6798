// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/int8.h"

#include <ATen/Parallel.h>

#include "stepforge/base/weight_code.h"
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

template <typename T>
void scale_all_bytes(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  const auto* from = reinterpret_cast<const int8_t*>(codes.const_data_ptr<uint8_t>());
  const auto* scales = factors.const_data_ptr<float>();
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, factors.numel(), kElementsPerTask / kCodeBlock, [&](int64_t begin, int64_t end) {
    scale_bytes(from + begin * kCodeBlock, scales + begin, to + begin * kCodeBlock, end - begin);
  });
}

}  // namespace

void dequantize_int8(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  if (out.scalar_type() == at::kFloat)
    scale_all_bytes<float>(codes, factors, out);
  else
    scale_all_bytes<BFloat16>(codes, factors, out);
}

}  // namespace stepforge::cpu
