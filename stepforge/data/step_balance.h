// SPDX-License-Identifier: Apache-2.0
// An order of the rows of a step that gives all ranks about the same work, without knowing how many there
// are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace stepforge {

/// Element p is the number of the row at position p. The rows are divided into two halves of nearly equal
/// cost, the first with one row more if their number is odd, and so is each half. If the number is even, the
/// halves differ by at most the largest difference between two rows that are neighbours by cost. Ranks have
/// contiguous rows, so they are balanced for every power of two of ranks, and nearly so for others.
std::vector<int64_t> balanced_order(std::span<const int64_t> costs);

/// By which fraction the costliest of `blocks` contiguous blocks exceeds their mean. `blocks` divides the
/// number of rows. 0 if nothing costs anything.
double imbalance(std::span<const int64_t> costs, int64_t blocks);

/// A bijection of the rows of an endless stream that keeps each in its step, [k rows_per_step, (k + 1)
/// rows_per_step). Safe to call from several threads.
class BalancedSteps {
 public:
  /// `cost` of a row of the stream before it is reordered; a pure function.
  BalancedSteps(int64_t rows_per_step, std::function<int64_t(int64_t)> cost);
  /// The row that comes at position `position` of the stream.
  int64_t operator()(int64_t position) const;

 private:
  struct Step {
    int64_t number = -1;
    std::vector<int64_t> order;
  };
  std::shared_ptr<const Step> step(int64_t number) const;

  int64_t rows_per_step_;
  std::function<int64_t(int64_t)> cost_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Step> latest_;  ///< the last step asked for; a cache only
};

}  // namespace stepforge
