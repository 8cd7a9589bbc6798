// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/step_balance.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace stepforge {

namespace {

/// Divides rows that are sorted by falling cost. Of each pair of neighbours, the half that has cost less so
/// far gets the costlier row, so the halves never differ by more than two rows of one pair do.
void balance(std::span<const int64_t> costs, std::span<int64_t> rows) {
  if (rows.size() <= 2) return;
  const auto cost = [&](int64_t row) { return costs[static_cast<size_t>(row)]; };
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  int64_t difference = 0;  // what the first half costs more
  size_t i = 0;
  for (; i + 1 < rows.size(); i += 2) {
    const int64_t gap = cost(rows[i]) - cost(rows[i + 1]);
    const bool costlier_to_first = difference <= 0;
    first.push_back(rows[costlier_to_first ? i : i + 1]);
    second.push_back(rows[costlier_to_first ? i + 1 : i]);
    difference += costlier_to_first ? gap : -gap;
  }
  if (i < rows.size()) first.push_back(rows[i]);
  std::copy(second.begin(), second.end(), std::copy(first.begin(), first.end(), rows.begin()));
  balance(costs, rows.first(first.size()));
  balance(costs, rows.subspan(first.size()));
}

}  // namespace

std::vector<int64_t> balanced_order(std::span<const int64_t> costs) {
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return costs[static_cast<size_t>(a)] > costs[static_cast<size_t>(b)];
  });
  balance(costs, order);
  return order;
}

double imbalance(std::span<const int64_t> costs, int64_t blocks) {
  const size_t rows = costs.size() / static_cast<size_t>(blocks);
  double costliest = 0.0;
  double total = 0.0;
  for (std::span<const int64_t> rest = costs; !rest.empty(); rest = rest.subspan(rows)) {
    const std::span<const int64_t> block = rest.first(rows);
    const double cost = std::accumulate(block.begin(), block.end(), 0.0);
    costliest = std::max(costliest, cost);
    total += cost;
  }
  return total > 0.0 ? costliest * static_cast<double>(blocks) / total - 1.0 : 0.0;
}

BalancedSteps::BalancedSteps(int64_t rows_per_step, std::function<int64_t(int64_t)> cost)
    : rows_per_step_(rows_per_step), cost_(std::move(cost)) {}

std::shared_ptr<const BalancedSteps::Step> BalancedSteps::step(int64_t number) const {
  {
    const std::lock_guard lock(mutex_);
    if (latest_ && latest_->number == number) return latest_;
  }
  std::vector<int64_t> costs(static_cast<size_t>(rows_per_step_));
  for (int64_t i = 0; i < rows_per_step_; ++i)
    costs[static_cast<size_t>(i)] = cost_(number * rows_per_step_ + i);
  auto made = std::make_shared<Step>();
  made->number = number;
  made->order = balanced_order(costs);
  const std::lock_guard lock(mutex_);
  latest_ = made;
  return made;
}

int64_t BalancedSteps::operator()(int64_t position) const {
  const int64_t number = position / rows_per_step_;
  return number * rows_per_step_ + step(number)->order[static_cast<size_t>(position % rows_per_step_)];
}

}  // namespace stepforge
