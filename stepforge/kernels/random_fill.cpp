// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/random_fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/kernels/cpu/normal_numbers.h"

namespace stepforge {
namespace {

/// Draws again until each value is within the cutoff. values are those of groups first_group, first_group + 1, ….
void redraw(uint64_t key, uint64_t first_group, float cutoff, std::span<float> values) {
  std::vector<size_t> outside;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(std::abs(values[i]) <= cutoff)) outside.push_back(i);
  }
  for (uint64_t attempt = 1; !outside.empty(); ++attempt) {
    size_t left = 0;
    for (size_t begin = 0; begin < outside.size(); begin += cpu::kNormalGroups) {
      const size_t count = std::min<size_t>(cpu::kNormalGroups, outside.size() - begin);
      std::array<uint64_t, cpu::kNormalGroups> groups = {};
      for (size_t i = 0; i < count; ++i) groups[i] = first_group + outside[begin + i] / 4;
      std::array<float, cpu::kNormalNumbers> drawn;
      cpu::normal_numbers(key, groups.data(), attempt, drawn.data());
      for (size_t i = 0; i < count; ++i) {
        const size_t index = outside[begin + i];
        values[index] = drawn[4 * i + index % 4];
        if (!(std::abs(values[index]) <= cutoff)) outside[left++] = index;
      }
    }
    outside.resize(left);
  }
}

/// One of the four values of a group.
float uniform_value(const Initializer& init, uint64_t key, uint64_t group, size_t word) {
  return static_cast<float>(init.std * (2.0 * uniform_float(philox(key, group, 0)[word]) - 1.0));
}

/// Values of elements kNormalNumbers * block and the following.
std::array<float, cpu::kNormalNumbers> value_block(const Initializer& init, uint64_t key, int64_t block) {
  const auto first_group = static_cast<uint64_t>(block * cpu::kNormalGroups);
  std::array<uint64_t, cpu::kNormalGroups> groups;
  std::iota(groups.begin(), groups.end(), first_group);
  std::array<float, cpu::kNormalNumbers> values;
  if (init.kind == Initializer::Kind::uniform) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = uniform_value(init, key, groups[i / 4], i % 4);
    return values;
  }
  cpu::normal_numbers(key, groups.data(), 0, values.data());
  if (init.kind == Initializer::Kind::truncated_normal) {
    redraw(key, first_group, static_cast<float>(init.cutoff), values);
  }
  for (float& value : values) value *= static_cast<float>(init.std);
  return values;
}

/// Rejection sampling draws about 1.25 / cutoff times for each element.
constexpr double kMinCutoff = 0.05;

void check_arguments(int64_t first_index, int64_t count, const Initializer& init) {
  if (first_index < 0 || count < 0) {
    throw Error(
        format("fill_initial: {} elements from index {}: neither may be negative", count, first_index));
  }
  const bool random = init.kind != Initializer::Kind::zeros && init.kind != Initializer::Kind::ones;
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
  const int64_t end_index = first_index + count;
  constexpr int64_t kBlocksPerTask = 256;
  at::parallel_for(first_index / cpu::kNormalNumbers, (end_index - 1) / cpu::kNormalNumbers + 1,
                   kBlocksPerTask, [&](int64_t begin, int64_t end) {
                     for (int64_t block = begin; block < end; ++block) {
                       const auto values = value_block(initializer, key, block);
                       const int64_t from = std::max(block * cpu::kNormalNumbers, first_index);
                       const int64_t to = std::min((block + 1) * cpu::kNormalNumbers, end_index);
                       std::copy_n(values.begin() + from % cpu::kNormalNumbers, to - from,
                                   data + (from - first_index));
                     }
                   });
}

float initial_value_reference(int64_t index, const Initializer& initializer, uint64_t key) {
  check_arguments(index, 1, initializer);
  if (initializer.kind == Initializer::Kind::zeros) return 0.0F;
  if (initializer.kind == Initializer::Kind::ones) return 1.0F;
  const auto group = static_cast<uint64_t>(index / 4);
  if (initializer.kind == Initializer::Kind::uniform)
    return uniform_value(initializer, key, group, static_cast<size_t>(index % 4));
  const auto pair = static_cast<size_t>(index % 4 / 2);
  for (uint64_t attempt = 0;; ++attempt) {
    const auto words = philox(key, group, attempt);
    const double radius = std::sqrt(-2.0 * std::log((words[2 * pair] + 0.5) * 0x1.0p-32));
    const double angle = 2.0 * std::numbers::pi * uniform_float(words[2 * pair + 1]);
    const double value = radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
    if (initializer.kind == Initializer::Kind::normal || std::abs(value) <= initializer.cutoff) {
      return static_cast<float>(value * initializer.std);
    }
  }
}

}  // namespace stepforge
