// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/row_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

void check(const StepRows& steps, size_t sources) {
  if (!steps.group_by_length && !steps.balance) return;
  if (steps.rows_per_step < 1) {
    throw UsageError(
        format("rows cannot be ordered by step for {} rows a step; set training.global_batch_size",
               steps.rows_per_step));
  }
  if (steps.group_by_length && sources != 1) {
    throw UsageError(
        format("the rows of {} sources cannot be grouped by length, since a step mixes them; set "
               "data.group_by_length = "
               "false",
               sources));
  }
}

/// The order that groups the rows of a step by what they cost.
std::unique_ptr<const LengthGroupedOrder> grouped(const RowSource& source, int64_t rows_per_step,
                                                  uint64_t seed) {
  std::vector<int64_t> costs;
  costs.reserve(static_cast<size_t>(source.rows()));
  for (int64_t row = 0; row < source.rows(); ++row) costs.push_back(source.attention_cost(row));
  return std::make_unique<const LengthGroupedOrder>(std::move(costs), rows_per_step, seed);
}

}  // namespace

RowStream::RowStream(std::vector<WeightedSource> sources) : sources_(std::move(sources)) {
  if (sources_.empty()) throw UsageError("no data source is given");
  seq_len_ = sources_.front().source->seq_len();
  for (const auto& [source, weight] : sources_) {
    if (source->seq_len() != seq_len_) {
      throw Error(format("{} has rows of {} tokens, {} of {}", source->name(), source->seq_len(),
                         sources_.front().source->name(), seq_len_));
    }
    rows_per_epoch_ += source->rows();
  }
}

std::shared_ptr<const RowStream> RowStream::mixture(std::vector<WeightedSource> sources, uint64_t seed,
                                                    bool shuffle, const StepRows& steps) {
  check(steps, sources.size());
  const std::shared_ptr<RowStream> stream(new RowStream(std::move(sources)));
  std::vector<double> weights;
  std::vector<std::string> names;
  std::string identity = format("mixture seed {} shuffle {} seq_len {}", seed, shuffle, stream->seq_len_);
  for (const auto& [source, weight] : stream->sources_) {
    const auto number = static_cast<int64_t>(weights.size());
    stream->orders_.emplace_back(source->rows(), seed, number, shuffle && !steps.group_by_length);
    weights.push_back(weight);
    names.push_back(source->name());
    identity += "\n" + source->fingerprint();
  }
  stream->mixture_ = std::make_unique<Mixture>(weights, names, seed);
  // The rows that weights result in: 1 and 3 are the same as 0.25 and 0.75.
  for (const int64_t rows : stream->mixture_->rows_per_block()) identity += format(" {}", rows);
  if (steps.group_by_length) {
    stream->grouped_ = grouped(*stream->sources_[0].source, steps.rows_per_step, seed);
    identity += format(" grouped {}", steps.rows_per_step);
  }
  if (steps.balance) {
    // The stream owns the function and outlives it.
    stream->balanced_ = std::make_unique<const BalancedSteps>(
        steps.rows_per_step,
        [made = stream.get()](int64_t row) { return made->cost(made->locate_in_mixture(row)); });
    identity += format(" balanced {}", steps.rows_per_step);
  }
  stream->fingerprint_ = content_hash(identity);
  return stream;
}

std::shared_ptr<const RowStream> RowStream::one_pass(std::vector<std::shared_ptr<const RowSource>> sources) {
  std::vector<WeightedSource> weighted;
  weighted.reserve(sources.size());
  for (auto& source : sources) weighted.push_back({std::move(source), 1.0});
  const std::shared_ptr<RowStream> stream(new RowStream(std::move(weighted)));
  std::string identity = "one pass";
  for (const auto& [source, weight] : stream->sources_) identity += "\n" + source->fingerprint();
  stream->fingerprint_ = content_hash(identity);
  return stream;
}

std::optional<int64_t> RowStream::total_rows() const {
  if (mixture_) return std::nullopt;
  return rows_per_epoch_;
}

RowRef RowStream::locate(int64_t row) const {
  if (!mixture_) return locate_in_one_pass(row);
  return locate_in_mixture(balanced_ ? (*balanced_)(row) : row);
}

RowRef RowStream::locate_in_mixture(int64_t row) const {
  const RowRef drawn = mixture_->locate(grouped_ ? (*grouped_)(row) : row);
  return {drawn.source, orders_[static_cast<size_t>(drawn.source)](drawn.running)};
}

int64_t RowStream::cost(const RowRef& row) const {
  return sources_[static_cast<size_t>(row.source)].source->attention_cost(row.running);
}

RowRef RowStream::locate_in_one_pass(int64_t row) const {
  int64_t number = 0;
  for (const auto& [source, weight] : sources_) {
    if (row < source->rows()) return {number, row};
    row -= source->rows();
    ++number;
  }
  throw Error(
      format("row {} is past the end of a stream of {} rows", row + rows_per_epoch_, rows_per_epoch_));
}

Batch RowStream::rows(int64_t first_row, int64_t count) const {
  if (first_row < 0 || count < 0 || count > std::numeric_limits<int64_t>::max() - first_row) {
    throw Error(format("rows [{}, {} + {}) requested", first_row, first_row, count));
  }
  const int64_t end = mixture_ ? first_row + count : std::min(first_row + count, rows_per_epoch_);
  Batch batch = empty_batch(seq_len_, std::max<int64_t>(0, end - first_row));
  Row row;
  for (int64_t number = first_row; number < end; ++number) {
    const RowRef found = locate(number);
    sources_[static_cast<size_t>(found.source)].source->read(found.running, row);
    append_row(row, static_cast<uint64_t>(number), batch);
  }
  return batch;
}

std::optional<double> RowStream::bytes_per_token() const {
  double bytes = 0.0;
  double tokens = 0.0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const RowSource& source = *sources_[i].source;
    const auto known = source.text_bytes();
    if (!known || source.tokens() == 0) return std::nullopt;
    // A source counts by its share of the rows in a mixture, by its size in one pass.
    const double rows = static_cast<double>(mixture_ ? mixture_->rows_per_block()[i] : source.rows());
    bytes += rows * static_cast<double>(*known) / static_cast<double>(source.tokens());
    tokens += rows;
  }
  return bytes / tokens;
}

}  // namespace stepforge
