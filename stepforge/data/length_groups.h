// SPDX-License-Identifier: Apache-2.0
// An order of rows in which those of one step cost about the same: XTuner's LengthGroupedSampler.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace stepforge {

/// Numbers of rows with these lengths. randperm(seed) is divided into blocks of m * rows_per_step for
/// m = clamp(rows / (4 rows_per_step), 1, 50); each is sorted by falling length and divided into groups of
/// `rows_per_group`, which Python's Random(seed) shuffles; fewer rows than a group are the last. XTuner's group is one row per rank; a group that
/// does not depend on the number of ranks is a step.
std::vector<int64_t> length_grouped_order(std::span<const int64_t> lengths, int64_t rows_per_step,
                                          int64_t rows_per_group, uint64_t seed);

/// The order in which a source's rows are drawn: in each epoch every row once, grouped by step with
/// seed + epoch. Safe to call from several threads.
class LengthGroupedOrder {
 public:
  LengthGroupedOrder(std::vector<int64_t> lengths, int64_t rows_per_step, uint64_t seed);
  /// The number in the source of the row that is drawn `running`-th, in epoch running / rows.
  int64_t operator()(int64_t running) const;

 private:
  struct Epoch {
    int64_t number = -1;
    std::vector<int64_t> rows;
  };
  std::shared_ptr<const Epoch> epoch(int64_t number) const;

  std::vector<int64_t> lengths_;
  int64_t rows_per_step_;
  uint64_t seed_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> latest_;  ///< the last epoch asked for; a cache only
};

}  // namespace stepforge
