// SPDX-License-Identifier: Apache-2.0
// Which row of which source comes when: pure functions of a seed and a row number, nothing stored.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace stepforge {

/// The row drawn `running`-th from source `source`, counted over all its epochs.
struct RowRef {
  int64_t source = 0;
  int64_t running = 0;
};

/// Divides rows between weighted sources. Every block of 4,096 rows holds the same exact number of rows of
/// each source (largest remainder), in an order shuffled by (seed, block); the rows of each source come in
/// running order.
class Mixture {
 public:
  static constexpr int64_t kBlockRows = 4096;

  /// `names` begin the messages. Throws UsageError if a weight is not a positive number, or so small that its
  /// source would never get a row.
  Mixture(const std::vector<double>& weights, const std::vector<std::string>& names, uint64_t seed);

  /// Rows of each source in every block; they add up to kBlockRows.
  const std::vector<int64_t>& rows_per_block() const { return rows_per_block_; }
  /// The source and running number of global row `row` >= 0. Safe to call from several threads.
  RowRef locate(int64_t row) const;

 private:
  struct Block {
    int64_t number = -1;
    std::vector<int32_t> source;  ///< [kBlockRows]
    std::vector<int32_t> index;   ///< [kBlockRows] how many rows of that source come before in the block
  };
  std::shared_ptr<const Block> block(int64_t number) const;

  std::vector<int64_t> rows_per_block_;
  uint64_t key_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Block> latest_;  ///< the last block asked for; a cache only
};

/// The order in which a source's rows are drawn: in each epoch every row once, shuffled by (seed, source,
/// epoch).
class RowOrder {
 public:
  RowOrder(int64_t rows, uint64_t seed, int64_t source, bool shuffle);
  /// The number in the source of the row that is drawn `running`-th, in epoch running / rows.
  int64_t operator()(int64_t running) const;

 private:
  int64_t rows_;
  uint64_t key_;
  bool shuffle_;
};

/// Divides each epoch between sources: it holds the given number of rows of each, all shuffled together by (seed,
/// epoch), or source after source. The rows of a source continue where its part of the epoch before has ended.
class EpochMixture {
 public:
  /// The numbers are positive.
  EpochMixture(std::vector<int64_t> rows_per_epoch, uint64_t seed, bool shuffle);

  const std::vector<int64_t>& rows_per_epoch() const { return rows_per_epoch_; }
  /// The source and running number of global row `row` >= 0. Safe to call from several threads.
  RowRef locate(int64_t row) const;

 private:
  std::vector<int64_t> rows_per_epoch_;
  std::vector<int64_t> ends_;  ///< of each source's part of an unshuffled epoch
  RowOrder order_;
};

}  // namespace stepforge
