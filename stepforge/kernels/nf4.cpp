// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/nf4.h"

#include <algorithm>
#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/nf4_values.h"
#include "stepforge/kernels/weight_codes.h"

namespace stepforge {

namespace {

/// Halfway between neighbours: a number above one is nearer to the upper value.
constexpr std::array<float, 15> midpoints() {
  std::array<float, 15> found{};
  for (size_t i = 0; i < found.size(); ++i) found[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2.0F;
  return found;
}

uint8_t code_of(float scaled) {
  static constexpr std::array<float, 15> kMidpoints = midpoints();
  const float x = std::clamp(scaled, -1.0F, 1.0F);
  return static_cast<uint8_t>(std::lower_bound(kMidpoints.begin(), kMidpoints.end(), x) - kMidpoints.begin());
}

}  // namespace

void quantize_nf4_block(const float* values, float largest, uint8_t* codes, float& factor) {
  factor = largest;
  constexpr float kSmallest = 1e-38F;
  const float inverse = 1.0F / std::max(largest, kSmallest);
  for (int64_t i = 0; i < kCodeBlock / 2; ++i)
    codes[i] =
        static_cast<uint8_t>(code_of(values[2 * i] * inverse) << 4 | code_of(values[2 * i + 1] * inverse));
}

void dequantize_nf4(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  check_coded(WeightCode::nf4, codes, factors, out);
  pick(&KernelTable::dequantize_nf4, out)(codes, factors, out);
}

void reference::dequantize_nf4(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  const at::Tensor table = at::tensor(at::ArrayRef<float>(kNf4Values), factors.options());
  const at::Tensor wide = codes.to(at::kLong);
  const at::Tensor indices = at::stack({wide.bitwise_right_shift(4), wide.bitwise_and(15)}, 1).flatten();
  const at::Tensor values = table.index_select(0, indices).view({-1, kCodeBlock});
  out.copy_((values * factors.unsqueeze(1)).view({-1}));
}

}  // namespace stepforge
