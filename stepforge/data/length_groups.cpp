// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/length_groups.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/peer_orders.h"

namespace stepforge {

namespace {

constexpr int64_t kFewestBlocks = 4;
constexpr int64_t kMostStepsPerBlock = 50;

/// The parts of `rows`, each of `size` rows except for the last one.
std::vector<std::span<int64_t>> parts_of(std::span<int64_t> rows, int64_t size) {
  std::vector<std::span<int64_t>> parts;
  for (; !rows.empty(); rows = rows.subspan(parts.back().size()))
    parts.push_back(rows.first(std::min(rows.size(), static_cast<size_t>(size))));
  return parts;
}

}  // namespace

std::vector<int64_t> length_grouped_order(std::span<const int64_t> lengths, int64_t rows_per_step,
                                          int64_t rows_per_group, uint64_t seed) {
  const int64_t rows = std::ssize(lengths);
  if (rows > kMaxTorchRandperm)
    throw UsageError(
        format("{} rows cannot be grouped by length, at most {}: set data.group_by_length = false, or use "
               "a larger training.seq_len",
               rows, kMaxTorchRandperm));
  const int64_t steps = std::clamp<int64_t>(rows / rows_per_step / kFewestBlocks, 1, kMostStepsPerBlock);
  std::vector<int64_t> shuffled = torch_randperm(rows, static_cast<uint32_t>(seed));
  PythonRandom random(seed);
  std::vector<int64_t> order;
  order.reserve(shuffled.size());
  for (const std::span<int64_t> block : parts_of(shuffled, steps * rows_per_step)) {
    std::stable_sort(block.begin(), block.end(), [&](int64_t a, int64_t b) {
      return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
    });
    std::vector<std::span<int64_t>> groups = parts_of(block, rows_per_group);
    const bool has_rest = std::ssize(groups.back()) < rows_per_group;
    const std::span<int64_t> rest = has_rest ? groups.back() : std::span<int64_t>();
    if (has_rest) groups.pop_back();
    random.shuffle(groups);
    for (const std::span<int64_t> group : groups) order.insert(order.end(), group.begin(), group.end());
    order.insert(order.end(), rest.begin(), rest.end());
  }
  return order;
}

LengthGroupedOrder::LengthGroupedOrder(std::vector<int64_t> lengths, int64_t rows_per_step, uint64_t seed)
    : lengths_(std::move(lengths)), rows_per_step_(rows_per_step), seed_(seed) {}

std::shared_ptr<const LengthGroupedOrder::Epoch> LengthGroupedOrder::epoch(int64_t number) const {
  {
    const std::lock_guard lock(mutex_);
    if (latest_ && latest_->number == number) return latest_;
  }
  const uint64_t seed = seed_ + static_cast<uint64_t>(number);
  auto made = std::make_shared<Epoch>();
  made->number = number;
  made->rows = length_grouped_order(lengths_, rows_per_step_, rows_per_step_, seed);
  const std::lock_guard lock(mutex_);
  latest_ = made;
  return made;
}

int64_t LengthGroupedOrder::operator()(int64_t running) const {
  const int64_t rows = std::ssize(lengths_);
  return epoch(running / rows)->rows[static_cast<size_t>(running % rows)];
}

}  // namespace stepforge
