// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/row_stream.h"

#include <algorithm>
#include <limits>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// The smallest multiple of `step` that is at least `rows`.
int64_t round_up(int64_t rows, int64_t step) {
  if (step < 1) throw UsageError(format("an epoch of a multiple of {} rows: it must be at least 1", step));
  return (rows + step - 1) / step * step;
}

/// The entries, each once, in order.
std::vector<SourceEntry> once_each(std::vector<SourceEntry> entries) {
  for (SourceEntry& entry : entries) {
    entry.weight = 1.0;
    entry.epochs = 1.0;
  }
  return entries;
}

}  // namespace

RowStream::RowStream(const std::vector<SourceEntry>& entries, const MixtureOptions& options, bool endless,
                     int64_t epoch_multiple, const std::string& place)
    : tree_(entries, place, options), endless_(endless), seq_len_(sources().front().source->seq_len()) {
  for (const SourceTree::Leaf& leaf : sources()) {
    if (leaf.source->seq_len() == seq_len_) continue;
    throw Error(format("{} has rows of {} tokens, {} of {}", leaf.source->name(), leaf.source->seq_len(),
                       sources().front().source->name(), seq_len_));
  }
  padded_rows_ = round_up(tree_.rows_per_epoch(), epoch_multiple);
}

std::shared_ptr<const RowStream> RowStream::mixture(const std::vector<SourceEntry>& entries,
                                                    const MixtureOptions& options, int64_t epoch_multiple,
                                                    const std::string& place) {
  const std::shared_ptr<RowStream> stream(
      new RowStream(entries, options, /*endless=*/true, epoch_multiple, place));
  std::string identity =
      format("mixture seed {} shuffle {} seq_len {}", options.seed, options.shuffle, stream->seq_len_);
  if (const int64_t rows = stream->padded_rows_; rows != stream->tree_.rows_per_epoch())
    identity += format(" epochs of {} rows", rows);
  stream->fingerprint_ = content_hash(identity + stream->tree_.identity());
  return stream;
}

std::shared_ptr<const RowStream> RowStream::mixture(const std::vector<WeightedSource>& sources, uint64_t seed,
                                                    bool shuffle) {
  std::vector<SourceEntry> entries;
  for (const auto& [source, weight] : sources)
    entries.push_back({.name = source->name(), .source = source, .weight = weight});
  return mixture(entries, {.seed = seed, .shuffle = shuffle});
}

std::shared_ptr<const RowStream> RowStream::one_pass(const std::vector<SourceEntry>& entries) {
  const std::shared_ptr<RowStream> stream(new RowStream(
      once_each(entries), {.shuffle = false}, /*endless=*/false, /*epoch_multiple=*/1, "data.validation"));
  std::string identity = "one pass";
  for (const SourceTree::Leaf& leaf : stream->sources()) identity += "\n" + leaf.source->fingerprint();
  stream->fingerprint_ = content_hash(identity);
  return stream;
}

std::shared_ptr<const RowStream> RowStream::one_pass(
    const std::vector<std::shared_ptr<const RowSource>>& sources) {
  std::vector<SourceEntry> entries;
  for (const auto& source : sources) entries.push_back({.name = source->name(), .source = source});
  return one_pass(entries);
}

std::optional<int64_t> RowStream::total_rows() const {
  if (endless_) return std::nullopt;
  return padded_rows_;
}

std::vector<std::string> RowStream::source_names() const {
  std::vector<std::string> names;
  for (const SourceTree::Leaf& leaf : sources()) names.push_back(leaf.name);
  return names;
}

std::optional<int64_t> RowStream::number_in_tree(int64_t number) const {
  const int64_t rows = tree_.rows_per_epoch();
  if (rows == padded_rows_) return number;
  const int64_t offset = number % padded_rows_;
  if (offset >= rows) return std::nullopt;
  return number / padded_rows_ * rows + offset;
}

Batch RowStream::rows(int64_t first_row, int64_t count) const {
  if (first_row < 0 || count < 0 || count > std::numeric_limits<int64_t>::max() - first_row) {
    throw Error(format("rows [{}, {} + {}) requested", first_row, first_row, count));
  }
  const int64_t end = endless_ ? first_row + count : std::min(first_row + count, padded_rows_);
  Batch batch = empty_batch(seq_len_, std::max<int64_t>(0, end - first_row));
  Row row;
  for (int64_t number = first_row; number < end; ++number) {
    int32_t source = kNoSource;
    if (const std::optional<int64_t> drawn = number_in_tree(number)) {
      const RowRef found = tree_.locate(*drawn);
      source = static_cast<int32_t>(found.source);
      sources()[static_cast<size_t>(found.source)].source->read(found.running, row);
    } else {
      row = {};
      append_padding(seq_len_, row);
    }
    append_row(row, static_cast<uint64_t>(number), batch);
    batch.sources.push_back(source);
  }
  return batch;
}

std::optional<double> RowStream::bytes_per_token() const {
  double bytes = 0.0;
  double tokens = 0.0;
  for (const SourceTree::Leaf& leaf : sources()) {
    const auto known = leaf.source->text_bytes();
    if (!known || leaf.source->tokens() == 0) return std::nullopt;
    // A source counts by its share of the rows.
    bytes += leaf.rows * static_cast<double>(*known) / static_cast<double>(leaf.source->tokens());
    tokens += leaf.rows;
  }
  return bytes / tokens;
}

}  // namespace stepforge
