// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/nf4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/nf4_values.h"
#include "stepforge/kernels/tensor_check.h"

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

void quantize_block(const float* values, uint8_t* codes, float& factor) {
  constexpr float kSmallest = 1e-38F;
  factor = 0.0F;
  bool is_finite = true;
  for (int64_t i = 0; i < kCodeBlock; ++i) {
    is_finite = is_finite && std::isfinite(values[i]);
    factor = std::max(factor, std::abs(values[i]));
  }
  // Codes cannot hold a nonfinite number, and max() loses a NaN: the block shows it by its factor.
  if (!is_finite) factor = std::numeric_limits<float>::quiet_NaN();
  const float inverse = 1.0F / std::max(factor, kSmallest);
  for (int64_t i = 0; i < kCodeBlock / 2; ++i)
    codes[i] =
        static_cast<uint8_t>(code_of(values[2 * i] * inverse) << 4 | code_of(values[2 * i + 1] * inverse));
}

}  // namespace

Nf4Weights nf4_parts(const at::Tensor& stored, int64_t n) {
  return {stored.narrow(0, 0, n / 2), stored.narrow(0, n / 2, n / kCodeBlock * 4).view(at::kFloat)};
}

void quantize_nf4(const at::Tensor& values, const Nf4Weights& to) {
  const int64_t n = values.numel();
  if (n % kCodeBlock != 0)
    throw Error(format("NF4: {} weights are no multiple of a block of {}", n, kCodeBlock));
  check_tensor(values, "NF4 values", {n}, at::kFloat);
  check_tensor(to.codes, "NF4 codes", {n / 2}, at::kByte);
  check_tensor(to.factors, "NF4 factors", {n / kCodeBlock}, at::kFloat);
  const at::Tensor codes = at::empty({n / 2}, at::device(at::kCPU).dtype(at::kByte));
  const at::Tensor factors = at::empty({n / kCodeBlock}, at::device(at::kCPU).dtype(at::kFloat));
  const auto* from = values.const_data_ptr<float>();
  auto* to_codes = codes.mutable_data_ptr<uint8_t>();
  auto* to_factors = factors.mutable_data_ptr<float>();
  at::parallel_for(0, n / kCodeBlock, 256, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      quantize_block(from + block * kCodeBlock, to_codes + block * kCodeBlock / 2, to_factors[block]);
  });
  to.codes.copy_(codes);
  to.factors.copy_(factors);
}

void dequantize_nf4(const at::Tensor& codes, const at::Tensor& factors, const at::Tensor& out) {
  const int64_t n = out.numel();
  check_shape(out, "NF4 out", {n});
  check_tensor(codes, "NF4 codes", {n / 2}, at::kByte);
  check_tensor(factors, "NF4 factors", {n / kCodeBlock}, at::kFloat);
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
