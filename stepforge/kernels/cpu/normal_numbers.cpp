// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/normal_numbers.h"

#include <array>
#include <bit>
#include <cmath>

#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

using Lanes = std::array<uint32_t, kNormalGroups>;

/// One round of philox() (base/random.h) for all lanes.
STEPFORGE_INLINE void philox_round(std::array<Lanes, 4>& state, uint32_t key0, uint32_t key1) {
#pragma omp simd
  for (size_t i = 0; i < kNormalGroups; ++i) {
    const uint64_t product0 = uint64_t{0xD2511F53} * state[0][i];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * state[2][i];
    state[0][i] = static_cast<uint32_t>(product1 >> 32) ^ state[1][i] ^ key0;
    state[2][i] = static_cast<uint32_t>(product0 >> 32) ^ state[3][i] ^ key1;
    state[1][i] = static_cast<uint32_t>(product1);
    state[3][i] = static_cast<uint32_t>(product0);
  }
}

/// log(x) for positive normal x: x = 2^e (1 + f) with 1 + f from sqrt(1/2) to sqrt(2); the polynomial interpolates
/// (log(1 + f) - f) / f^2 at the Chebyshev nodes (relative error of the logarithm 1e-8 before rounding). `rest`: 1 - x, of which f is
/// made where x is near 1 and has lost its last digits.
STEPFORGE_INLINE float log_approx(float x, float rest) {
  constexpr uint32_t kRootHalf = 0x3F3504F3;
  const uint32_t above = std::bit_cast<uint32_t>(x) - kRootHalf;
  const bool near = rest < 0.25F;
  const float exponent = near ? 0.0F : static_cast<float>(static_cast<int32_t>(above) >> 23);
  const float f = near ? -rest : std::bit_cast<float>((above & 0x007FFFFFU) + kRootHalf) - 1.0F;
  float y = -7.673641481e-2F;
  y = y * f + 1.272267278e-1F;
  y = y * f - 1.312755565e-1F;
  y = y * f + 1.420485595e-1F;
  y = y * f - 1.662664563e-1F;
  y = y * f + 2.000123446e-1F;
  y = y * f - 2.500078124e-1F;
  y = y * f + 3.333333003e-1F;
  y = y * f - 4.999999765e-1F;
  const float low = y * f * f + exponent * -2.12194440e-4F;  // log(2) in two parts, as in exp_approx()
  return low + f + exponent * 0.693359375F;
}

/// Cosine and sine of 2 pi x for x in [0, 1): x is a quarter n / 4 plus at most 1 / 8, exactly, and the polynomials of the rest
/// interpolate at the Chebyshev nodes (errors below 2e-8).
STEPFORGE_INLINE void turn(float x, float& cosine, float& sine) {
  constexpr float kHalf = 0.5F;
  const float above = 4.0F * x + kHalf;
  const auto n = static_cast<uint32_t>(static_cast<int32_t>(above));
  const float r = x - 0.25F * static_cast<float>(static_cast<int32_t>(n));
  const float square = r * r;
  float s = -7.540161270e+1F;
  s = s * square + 8.159254287e+1F;
  s = s * square - 4.134166257e+1F;
  s = s * square + 6.283185288F;
  s = s * r;
  float c = 5.942410580e+1F;
  c = c * square - 8.544882008e+1F;
  c = c * square + 6.493936905e+1F;
  c = c * square - 1.973920879e+1F;
  c = c * square + 1.0F;
  const bool odd = (n & 1U) != 0;
  cosine = std::bit_cast<float>(std::bit_cast<uint32_t>(odd ? s : c) ^ (((n + 1) & 2U) << 30));
  sine = std::bit_cast<float>(std::bit_cast<uint32_t>(odd ? c : s) ^ ((n & 2U) << 30));
}

/// (word + 1/2) / 2^32. Halves of a word are converted without rounding, also by instructions for signed numbers only.
STEPFORGE_INLINE float middle(uint32_t word) {
  const float whole = static_cast<float>(static_cast<int32_t>(word >> 16)) * 65536.0F +
                      static_cast<float>(static_cast<int32_t>(word & 0xFFFFU));
  return (whole + 0.5F) * 0x1.0p-32F;
}

STEPFORGE_INLINE void box_muller(const Lanes& first, const Lanes& second, float* values) {
#pragma omp simd
  for (size_t i = 0; i < kNormalGroups; ++i) {
    const float radius = std::sqrt(-2.0F * log_approx(middle(first[i]), middle(~first[i])));
    float cosine = 0, sine = 0;
    turn(static_cast<float>(static_cast<int32_t>(second[i] >> 8)) * 0x1.0p-24F, cosine, sine);
    values[4 * i] = radius * cosine;
    values[4 * i + 1] = radius * sine;
  }
}

}  // namespace

STEPFORGE_SIMD_CLONES
void normal_numbers(uint64_t key, const uint64_t* groups, uint64_t attempt, float* values) {
  std::array<Lanes, 4> state = {};
  for (size_t i = 0; i < kNormalGroups; ++i) {
    state[0][i] = static_cast<uint32_t>(groups[i]);
    state[1][i] = static_cast<uint32_t>(groups[i] >> 32);
    state[2][i] = static_cast<uint32_t>(attempt);
    state[3][i] = static_cast<uint32_t>(attempt >> 32);
  }
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    philox_round(state, key0, key1);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  box_muller(state[0], state[1], values);
  box_muller(state[2], state[3], values + 2);
}

}  // namespace stepforge::cpu
