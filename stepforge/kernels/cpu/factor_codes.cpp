// SPDX-License-Identifier: Apache-2.0
// Compiled without fused multiply-adds (cmake/Rooms.cmake), so that factors have the same bits on every processor.
#include "stepforge/kernels/factor_codes.h"

#include <array>

#include <ATen/Parallel.h>

#include "stepforge/base/weight_code.h"
#include "stepforge/kernels/dynamic_code.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {

void dequantize_factors(const at::Tensor& codes, const at::Tensor& scales, const FactorPart& part,
                        const at::Tensor& out) {
  const std::array<float, 256>& values = dynamic_code(true);
  const auto* from = codes.const_data_ptr<uint8_t>();
  const auto* numbers = scales.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  constexpr int64_t kFactorsPerTask = 1 << 14;
  at::parallel_for(0, out.numel(), kFactorsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float difference = values[from[i]] * numbers[1 + part.block(i) / kFactorBlock];
      to[i] = difference + numbers[0];
    }
  });
}

}  // namespace stepforge::cpu
