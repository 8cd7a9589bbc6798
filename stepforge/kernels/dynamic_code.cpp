// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/dynamic_code.h"

#include <algorithm>
#include <cmath>

namespace stepforge {

namespace {

/// Where part `number` of [0.1, 1] begins, rounded as torch.linspace does: from the nearer end, with fused multiply-adds.
float part_begin(int number, int parts) {
  const float step = (1.0F - 0.1F) / static_cast<float>(parts);
  if (number < (parts + 1) / 2) return std::fma(step, static_cast<float>(number), 0.1F);
  return std::fma(-step, static_cast<float>(parts - number), 1.0F);
}

std::array<float, 256> make_dynamic_code(bool is_signed) {
  std::array<float, 256> code{};
  size_t count = 0;
  for (int i = 0; i <= 6; ++i) {
    const auto power = static_cast<float>(std::pow(10.0, i - 6));
    const int parts = is_signed ? 1 << i : 2 << i;
    for (int part = 0; part < parts; ++part) {
      const float value = power * ((part_begin(part, parts) + part_begin(part + 1, parts)) / 2.0F);
      code.at(count++) = value;
      if (is_signed) code.at(count++) = -value;
    }
  }
  code.at(count++) = 0.0F;
  code.at(count++) = 1.0F;
  std::ranges::sort(code);
  return code;
}

}  // namespace

const std::array<float, 256>& dynamic_code(bool is_signed) {
  static const std::array<float, 256> with_signs = make_dynamic_code(true);
  static const std::array<float, 256> without = make_dynamic_code(false);
  return is_signed ? with_signs : without;
}

}  // namespace stepforge
