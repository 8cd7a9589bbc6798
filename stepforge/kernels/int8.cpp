// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/int8.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/weight_codes.h"

namespace stepforge {

void quantize_int8_block(const float* values, float largest, uint8_t* codes, float& factor) {
  constexpr float kLargestCode = 127.0F;
  factor = largest / kLargestCode;
  // A block of zeros, or of denormal numbers that have no factor; and one with a nonfinite weight, which only the factor shows.
  if (!(factor > 0.0F)) {
    std::fill_n(codes, kCodeBlock, uint8_t{0});
    return;
  }
  for (int64_t i = 0; i < kCodeBlock; ++i) {
    // The factor of denormal numbers is inexact, so that a quotient may be larger.
    const float scaled = std::clamp(values[i] / factor, -kLargestCode, kLargestCode);
    codes[i] = static_cast<uint8_t>(static_cast<int8_t>(std::lrint(scaled)));
  }
}

void dequantize_int8(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  check_coded(WeightCode::int8, codes, factors, out);
  pick(&KernelTable::dequantize_int8, out)(codes, factors, out);
}

void reference::dequantize_int8(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  const at::Tensor values = codes.view(at::kChar).to(factors.scalar_type()).view({-1, kCodeBlock});
  out.copy_((values * factors.unsqueeze(1)).view({-1}));
}

}  // namespace stepforge
