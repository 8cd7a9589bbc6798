// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/random_fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"

namespace stepforge {
namespace {

/// Two standard normal numbers from two random words. u is never 0, so the logarithm is finite.
std::array<float, 2> box_muller(uint32_t first, uint32_t second) {
  const auto u = static_cast<float>((static_cast<double>(first) + 0.5) * 0x1.0p-32);
  const float angle = 2.0F * std::numbers::pi_v<float> * uniform_float(second);
  const float radius = std::sqrt(-2.0F * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Standard normal numbers of elements 4 * group .. 4 * group + 3.
std::array<float, 4> normal_group(uint64_t key, uint64_t group, uint64_t attempt) {
  const auto words = philox(key, group, attempt);
  const auto low = box_muller(words[0], words[1]);
  const auto high = box_muller(words[2], words[3]);
  return {low[0], low[1], high[0], high[1]};
}

std::array<float, 4> value_group(const Initializer& init, uint64_t key, uint64_t group) {
  std::array<float, 4> values = normal_group(key, group, 0);
  const auto std = static_cast<float>(init.std);
  const auto cutoff = static_cast<float>(init.cutoff);
  for (size_t lane = 0; lane < values.size(); ++lane) {
    if (init.kind == Initializer::Kind::truncated_normal) {
      for (uint64_t attempt = 1; !(std::abs(values[lane]) <= cutoff); ++attempt) {
        values[lane] = normal_group(key, group, attempt)[lane];
      }
    }
    values[lane] *= std;
  }
  return values;
}

/// Rejection sampling draws about 1.25 / cutoff times for each element.
constexpr double kMinCutoff = 0.05;

void check_arguments(int64_t first_index, int64_t count, const Initializer& init) {
  if (first_index < 0 || count < 0) {
    throw Error(
        format("fill_initial: {} elements from index {}: neither may be negative", count, first_index));
  }
  const bool random =
      init.kind == Initializer::Kind::normal || init.kind == Initializer::Kind::truncated_normal;
  if (random && !(init.std >= 0.0 && std::isfinite(init.std))) {
    throw Error(format("fill_initial: std = {}: must be finite and not negative", init.std));
  }
  if (init.kind == Initializer::Kind::truncated_normal && !(init.cutoff >= kMinCutoff)) {
    throw Error(format("fill_initial: cutoff = {} standard deviations: must be at least {}", init.cutoff,
                       kMinCutoff));
  }
}

}  // namespace

void fill_initial(float* data, int64_t first_index, int64_t count, const Initializer& initializer,
                  uint64_t key) {
  check_arguments(first_index, count, initializer);
  if (initializer.kind == Initializer::Kind::zeros || initializer.kind == Initializer::Kind::ones) {
    std::fill_n(data, count, initializer.kind == Initializer::Kind::ones ? 1.0F : 0.0F);
    return;
  }
  if (count == 0) return;
  const int64_t last_index = first_index + count - 1;
  constexpr int64_t kGroupsPerTask = 4096;
  at::parallel_for(first_index / 4, last_index / 4 + 1, kGroupsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const auto values = value_group(initializer, key, static_cast<uint64_t>(group));
      const int64_t from = std::max(group * 4, first_index);
      const int64_t to = std::min(group * 4 + 3, last_index);
      for (int64_t index = from; index <= to; ++index)
        data[index - first_index] = values[static_cast<size_t>(index % 4)];
    }
  });
}

float initial_value_reference(int64_t index, const Initializer& initializer, uint64_t key) {
  check_arguments(index, 1, initializer);
  if (initializer.kind == Initializer::Kind::zeros) return 0.0F;
  if (initializer.kind == Initializer::Kind::ones) return 1.0F;
  const bool truncated = initializer.kind == Initializer::Kind::truncated_normal;
  for (uint64_t attempt = 0;; ++attempt) {
    const float value =
        normal_group(key, static_cast<uint64_t>(index / 4), attempt)[static_cast<size_t>(index % 4)];
    if (!truncated || std::abs(value) <= static_cast<float>(initializer.cutoff)) {
      return value * static_cast<float>(initializer.std);
    }
  }
}

}  // namespace stepforge
