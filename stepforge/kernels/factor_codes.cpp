// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/factor_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/weight_code.h"
#include "stepforge/kernels/dynamic_code.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

/// The code of each of 65,536 equidistant numbers in [-1, 1].
class EquidistantCodes {
 public:
  EquidistantCodes() {
    const std::array<float, 256>& values = dynamic_code(true);
    size_t code = 0;
    for (size_t i = 0; i < codes_.size(); ++i) {
      const float number = -1.0F + 2.0F * static_cast<float>(i) / kLast;
      while (code < 255 && 0.5F * (values[code] + values[code + 1]) < number) ++code;
      codes_[i] = static_cast<uint8_t>(code);
    }
  }

  uint8_t of(float number) const {
    // Exact but for one rounding, with and without fused multiply-adds.
    const double position = static_cast<double>(std::clamp(number, -1.0F, 1.0F) + 1.0F) * 0.5 * kLast + 0.5;
    return codes_[static_cast<size_t>(static_cast<float>(position))];
  }

 private:
  static constexpr float kLast = 65535.0F;
  std::array<uint8_t, 65536> codes_{};
};

float quantize_differences(std::span<const float> factors, float mean, uint8_t* codes) {
  static const EquidistantCodes nearest;
  float scale = 0.0F;
  for (const float factor : factors) scale = std::max(scale, std::abs(factor - mean));
  const float inverse = 1.0F / scale;
  // Equal factors, or nearly; or one that is not finite, which only the mean shows.
  const bool is_usable = std::isfinite(inverse) && std::isfinite(mean);
  for (size_t i = 0; i < factors.size(); ++i)
    codes[i] = is_usable ? nearest.of((factors[i] - mean) * inverse) : uint8_t{0};
  return scale;
}

}  // namespace

FactorCodes quantize_factors(const at::Tensor& factors) {
  const int64_t n = factors.numel();
  check_tensor(factors, "factors", {n}, at::kFloat);
  const int64_t blocks = (n + kFactorBlock - 1) / kFactorBlock;
  FactorCodes made{at::empty({n}, factors.options().dtype(at::kByte)),
                   at::empty({1 + blocks}, factors.options())};
  const auto* from = factors.const_data_ptr<float>();
  auto* scales = made.scales.mutable_data_ptr<float>();
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(from[i]);
  scales[0] = static_cast<float>(sum / static_cast<double>(n));
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kFactorBlock;
    const auto count = static_cast<size_t>(std::min(kFactorBlock, n - begin));
    scales[1 + block] = quantize_differences({from + begin, count}, scales[0],
                                             made.codes.mutable_data_ptr<uint8_t>() + begin);
  }
  return made;
}

void dequantize_factors(const at::Tensor& codes, const at::Tensor& scales, const FactorPart& part,
                        const at::Tensor& out) {
  const int64_t m = out.numel();
  if (m == 0) return;
  check_tensor(out, "factors", {m}, compute_type(out));
  check_tensor(codes, "codes of factors", {m}, at::kByte);
  check_tensor(scales, "scales of factors", {scales.numel()}, at::kFloat);
  if (part.first < 0 || 1 + part.block(m - 1) / kFactorBlock >= scales.numel())
    throw Error(format("factors {} to {} have no scale: there are {}", part.first, part.block(m - 1),
                       scales.numel() - 1));
  pick(&KernelTable::dequantize_factors, out)(codes, scales, part, out);
}

void reference::dequantize_factors(const at::Tensor& codes, const at::Tensor& scales, const FactorPart& part,
                                   const at::Tensor& out) {
  const at::Tensor values = at::tensor(at::ArrayRef<float>(dynamic_code(true)), scales.options());
  const at::Tensor numbers = at::arange(out.numel(), scales.options().dtype(at::kLong));
  const at::Tensor rows = numbers.floor_divide(part.width);
  const at::Tensor blocks = rows * part.stride + (numbers - rows * part.width) + part.first;
  const at::Tensor of_blocks = scales.index_select(0, blocks.floor_divide(kFactorBlock) + 1);
  out.copy_(values.index_select(0, codes.to(at::kLong)) * of_blocks + scales.select(0, 0));
}

}  // namespace stepforge
