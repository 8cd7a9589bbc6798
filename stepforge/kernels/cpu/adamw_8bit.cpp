// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw_8bit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/adamw_step.h"
#include "stepforge/kernels/cpu/scalar_memory.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/dynamic_code.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

struct Code {
  explicit Code(bool is_signed) : values(dynamic_code(is_signed)) {
    for (size_t i = 0; i + 1 < values.size(); ++i) middles[i] = (values[i] + values[i + 1]) * 0.5F;
  }
  std::array<float, 256> values;
  std::array<float, 255> middles{};  ///< between neighbours
};

/// One block of a moment in memory.
struct MomentBlock {
  uint8_t* indices;
  float* scale;
};

STEPFORGE_INLINE void dequantize(const MomentBlock& block, const Code& code, float* values) {
  const float* decoded = code.values.data();
#pragma omp simd
  for (int64_t i = 0; i < kQuantizedBlock; ++i) values[i] = decoded[block.indices[i]] * *block.scale;
}

/// The index of the nearest value of the code; of two, the lower one. Steps of a loop would not be vectorised.
template <int32_t kHalf = 128>
STEPFORGE_INLINE int32_t nearest(const float* middles, float value, int32_t index = 0) {
  index += value > middles[index + kHalf - 1] ? kHalf : 0;
  if constexpr (kHalf == 1)
    return index;
  else
    return nearest<kHalf / 2>(middles, value, index);
}

/// `lowest`: the index of values above 0 at least.
STEPFORGE_INLINE void quantize(const float* values, const Code& code, int32_t lowest,
                               const MomentBlock& block) {
  const float* middles = code.middles.data();
  float largest = 0.0F;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < kQuantizedBlock; ++i) largest = std::max(largest, std::abs(values[i]));
  const float divisor = largest > 0.0F ? largest : 1.0F;
#pragma omp simd
  for (int64_t i = 0; i < kQuantizedBlock; ++i) {
    const float share = values[i] / divisor;
    const int32_t index = nearest(middles, share);
    const int32_t least = share > 0.0F ? lowest : 0;
    block.indices[i] = static_cast<uint8_t>(index > least ? index : least);
  }
  *block.scale = largest;
}

struct Codes {
  Code first{true};
  Code second{false};
};

STEPFORGE_SIMD_CLONES void update_block(float* parameter, const float* grad, const MomentBlock& first,
                                        const MomentBlock& second, const Codes& codes,
                                        const AdamWCoefficients& coefficients) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): written at once
  std::array<float, kQuantizedBlock> m, v;
  dequantize(first, codes.first, m.data());
  dequantize(second, codes.second, v.data());
  adamw_step(parameter, grad, m.data(), v.data(), kQuantizedBlock, coefficients);
  quantize(m.data(), codes.first, 0, first);
  quantize(v.data(), codes.second, 1, second);
}

}  // namespace

void adamw_8bit_update(const at::Tensor& parameter, const at::Tensor& grad, const QuantizedMoment& first,
                       const QuantizedMoment& second, const AdamWOptions& options,
                       const UpdateScalars& scalars) {
  if (read(scalars.finite) == 0.0) return;
  const AdamWCoefficients coefficients = adamw_coefficients(options, scalars);
  const Codes codes;
  float* p = parameter.mutable_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  const MomentBlock m{first.indices.mutable_data_ptr<uint8_t>(), first.scales.mutable_data_ptr<float>()};
  const MomentBlock v{second.indices.mutable_data_ptr<uint8_t>(), second.scales.mutable_data_ptr<float>()};
  at::parallel_for(0, parameter.numel() / kQuantizedBlock, kElementsPerTask / kQuantizedBlock,
                   [&](int64_t from, int64_t to) {
                     for (int64_t block = from; block < to; ++block) {
                       const int64_t i = block * kQuantizedBlock;
                       update_block(p + i, g + i, {m.indices + i, m.scale + block},
                                    {v.indices + i, v.scale + block}, codes, coefficients);
                     }
                   });
}

}  // namespace stepforge::cpu
