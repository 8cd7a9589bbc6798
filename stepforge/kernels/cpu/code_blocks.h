// SPDX-License-Identifier: Apache-2.0
// The decoding of frozen weights, block by block on all threads. Not public.
#pragma once

#include <cstdint>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "stepforge/base/weight_code.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

/// Calls decode(codes, factors, out, blocks) for parts of the blocks. `out`: fp32 or bf16, and so is the pointer.
template <typename Decode>
void decode_blocks(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out,
                   const Decode& decode) {
  const int64_t blocks = factors.numel();
  if (blocks == 0) return;
  const int64_t bytes = codes.numel() / blocks;
  const auto* from = codes.const_data_ptr<uint8_t>();
  const auto* scales = factors.const_data_ptr<float>();
  const auto decode_to = [&](auto* to) {
    at::parallel_for(0, blocks, kElementsPerTask / kCodeBlock, [&](int64_t begin, int64_t end) {
      decode(from + begin * bytes, scales + begin, to + begin * kCodeBlock, end - begin);
    });
  };
  if (out.scalar_type() == at::kFloat)
    decode_to(out.mutable_data_ptr<float>());
  else
    decode_to(out.mutable_data_ptr<BFloat16>());
}

}  // namespace stepforge::cpu
