// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"

namespace stepforge {

namespace {

/// Divides `total` in proportion to the weights; the remaining rows go to the largest remainders.
std::vector<int64_t> largest_remainder(const std::vector<double>& weights, int64_t total) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> shares(weights.size());
  std::vector<double> remainders(weights.size());
  int64_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * static_cast<double>(total);
    shares[i] = static_cast<int64_t>(std::floor(exact));
    remainders[i] = exact - std::floor(exact);
    given += shares[i];
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  for (size_t next = 0; given < total; ++next, ++given) ++shares[order[next % order.size()]];
  return shares;
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights, const std::vector<std::string>& names, uint64_t seed)
    : key_(stream_key(seed, "mixture blocks")) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] <= 0.0) {
      throw UsageError(format("{}: weight {} is not a positive number; to not use the source, leave it out",
                              names[i], weights[i]));
    }
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!std::isfinite(sum))
    throw UsageError("the weights of the data sources add up to infinity; use smaller numbers");
  rows_per_block_ = largest_remainder(weights, kBlockRows);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (rows_per_block_[i] > 0) continue;
    throw UsageError(
        format("{}: weight {} of a total of {} is {:.3g} rows in each block of {}, which rounds to 0; "
               "raise the weight (or the temperature that sets it) so that its share is {:.3g} times as "
               "large, or leave the source out",
               names[i], weights[i], sum, weights[i] / sum * static_cast<double>(kBlockRows), kBlockRows,
               sum / weights[i] / static_cast<double>(kBlockRows)));
  }
}

std::shared_ptr<const Mixture::Block> Mixture::block(int64_t number) const {
  {
    const std::lock_guard lock(mutex_);
    if (latest_ && latest_->number == number) return latest_;
  }
  auto result = std::make_shared<Block>();
  result->number = number;
  std::vector<int32_t> owner;  // the source of each row before shuffling
  for (size_t source = 0; source < rows_per_block_.size(); ++source) {
    owner.insert(owner.end(), static_cast<size_t>(rows_per_block_[source]), static_cast<int32_t>(source));
  }
  const Permutation shuffled(kBlockRows, mix_bits(key_ ^ mix_bits(static_cast<uint64_t>(number))));
  std::vector<int32_t> seen(rows_per_block_.size(), 0);
  for (uint64_t i = 0; i < kBlockRows; ++i) {
    const int32_t source = owner[shuffled(i)];
    result->source.push_back(source);
    result->index.push_back(seen[static_cast<size_t>(source)]++);
  }
  const std::lock_guard lock(mutex_);
  latest_ = result;
  return result;
}

RowRef Mixture::locate(int64_t row) const {
  if (rows_per_block_.size() == 1) return {0, row};
  const auto current = block(row / kBlockRows);
  const auto offset = static_cast<size_t>(row % kBlockRows);
  const int64_t source = current->source[offset];
  return {source, row / kBlockRows * rows_per_block_[static_cast<size_t>(source)] + current->index[offset]};
}

RowOrder::RowOrder(int64_t rows, uint64_t seed, int64_t source, bool shuffle)
    : rows_(rows), key_(stream_key(seed, format("sample order of source {}", source))), shuffle_(shuffle) {}

int64_t RowOrder::operator()(int64_t running) const {
  const int64_t offset = running % rows_;
  if (!shuffle_) return offset;
  const auto epoch = static_cast<uint64_t>(running / rows_);
  const Permutation order(static_cast<uint64_t>(rows_), mix_bits(key_ ^ mix_bits(epoch)));
  return static_cast<int64_t>(order(static_cast<uint64_t>(offset)));
}

EpochMixture::EpochMixture(std::vector<int64_t> rows_per_epoch, uint64_t seed, bool shuffle)
    : rows_per_epoch_(std::move(rows_per_epoch)),
      ends_(rows_per_epoch_.size()),
      order_(std::reduce(rows_per_epoch_.begin(), rows_per_epoch_.end()), stream_key(seed, "epoch mixture"),
             /*source=*/0, shuffle) {
  std::partial_sum(rows_per_epoch_.begin(), rows_per_epoch_.end(), ends_.begin());
}

RowRef EpochMixture::locate(int64_t row) const {
  const int64_t offset = order_(row);
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), offset);
  const auto source = static_cast<size_t>(end - ends_.begin());
  const int64_t rows = rows_per_epoch_[source];
  return {static_cast<int64_t>(source), row / ends_.back() * rows + offset - (*end - rows)};
}

}  // namespace stepforge
