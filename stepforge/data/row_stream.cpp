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
  return (rows + step - 1) / step * step;
}

void check(const StepRows& steps) {
  if (!steps.group_by_length && !steps.balance && !steps.fill_epochs) return;
  if (steps.rows_per_step < 1) {
    throw UsageError(
        format("rows cannot be ordered by step for {} rows a step; set training.global_batch_size",
               steps.rows_per_step));
  }
}

void require_single(size_t sources) {
  if (sources == 1) return;
  throw UsageError(
      format("the rows of {} sources cannot be grouped by length, since a step mixes them; set "
             "data.group_by_length = false",
             sources));
}

/// The order that groups the rows of a step by what they cost.
std::unique_ptr<const LengthGroupedOrder> grouped(const RowSource& source, int64_t rows_per_step,
                                                  uint64_t seed) {
  std::vector<int64_t> costs;
  costs.reserve(static_cast<size_t>(source.rows()));
  for (int64_t row = 0; row < source.rows(); ++row) costs.push_back(source.attention_cost(row));
  return std::make_unique<const LengthGroupedOrder>(std::move(costs), rows_per_step, seed);
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
                                                    const MixtureOptions& options, const StepRows& steps,
                                                    const std::string& place) {
  check(steps);
  MixtureOptions drawing = options;
  if (steps.group_by_length) drawing.shuffle = false;  // the groups have an order of their own
  const std::shared_ptr<RowStream> stream(
      new RowStream(entries, drawing, /*endless=*/true,
                    steps.fill_epochs || steps.group_by_length ? steps.rows_per_step : 1, place));
  std::string identity =
      format("mixture seed {} shuffle {} seq_len {}", options.seed, options.shuffle, stream->seq_len_);
  if (const int64_t rows = stream->padded_rows_; rows != stream->tree_.rows_per_epoch())
    identity += format(" epochs of {} rows", rows);
  identity += stream->tree_.identity();
  stream->order_steps(steps, options.seed, identity);
  stream->fingerprint_ = content_hash(identity);
  return stream;
}

void RowStream::order_steps(const StepRows& steps, uint64_t seed, std::string& identity) {
  if (steps.group_by_length) {
    require_single(sources().size());
    grouped_ = grouped(*sources().front().source, steps.rows_per_step, seed);
    identity += format(" grouped {}", steps.rows_per_step);
  }
  if (!steps.balance) return;
  balanced_ = std::make_unique<const BalancedSteps>(
      steps.rows_per_step, [this](int64_t row) { return cost_of(locate_unbalanced(row)); });
  identity += format(" balanced {}", steps.rows_per_step);
}

std::shared_ptr<const RowStream> RowStream::mixture(const std::vector<WeightedSource>& sources, uint64_t seed,
                                                    bool shuffle, const StepRows& steps) {
  std::vector<SourceEntry> entries;
  for (const auto& [source, weight] : sources)
    entries.push_back({.name = source->name(), .source = source, .weight = weight});
  return mixture(entries, {.seed = seed, .shuffle = shuffle}, steps);
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

std::shared_ptr<const RowStream> RowStream::every_row() const {
  std::vector<std::shared_ptr<const RowSource>> all;
  for (const SourceTree::Leaf& leaf : sources()) all.push_back(leaf.source);
  return one_pass(all);
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

std::string RowStream::content(const HashOfFile& hash_of) const {
  std::string contents = fingerprint_;
  for (const SourceTree::Leaf& leaf : sources()) contents += "\n" + leaf.source->content(hash_of);
  return content_hash(contents);
}

std::optional<RowRef> RowStream::locate(int64_t number) const {
  return locate_unbalanced(balanced_ ? (*balanced_)(number) : number);
}

std::optional<RowRef> RowStream::locate_unbalanced(int64_t number) const {
  if (const int64_t rows = tree_.rows_per_epoch(); rows != padded_rows_) {
    const int64_t offset = number % padded_rows_;
    if (offset >= rows) return std::nullopt;
    number = number / padded_rows_ * rows + offset;
  }
  return tree_.locate(grouped_ ? (*grouped_)(number) : number);
}

int64_t RowStream::cost_of(const std::optional<RowRef>& row) const {
  if (row) return sources()[static_cast<size_t>(row->source)].source->attention_cost(row->running);
  Row padding;
  append_padding(seq_len_, padding);
  return stepforge::attention_cost(padding.document_starts, seq_len_);
}

int64_t RowStream::attention_cost(int64_t row) const {
  return cost_of(locate(row));
}

Batch RowStream::rows(int64_t first_row, int64_t count, AnswerChoice answers) const {
  if (first_row < 0 || count < 0 || count > std::numeric_limits<int64_t>::max() - first_row) {
    throw Error(format("rows [{}, {} + {}) requested", first_row, first_row, count));
  }
  const int64_t end = endless_ ? first_row + count : std::min(first_row + count, padded_rows_);
  Batch batch = empty_batch(seq_len_, std::max<int64_t>(0, end - first_row));
  Row row;
  for (int64_t number = first_row; number < end; ++number) {
    int32_t source = kNoSource;
    int64_t row_of_source = -1;
    row.padding = 0;
    if (const std::optional<RowRef> found = locate(number)) {
      source = static_cast<int32_t>(found->source);
      row_of_source = found->running;
      const RowSource& drawn = *sources()[static_cast<size_t>(found->source)].source;
      if (answers == AnswerChoice::own)
        drawn.read(found->running, row);
      else
        drawn.read_mismatched(found->running, row);
    } else {
      row = {};
      append_padding(seq_len_, row);
    }
    const size_t pairs = batch.pairs.size();
    append_row(row, static_cast<uint64_t>(number), batch);
    for (AnswerPair& pair : std::span(batch.pairs).subspan(pairs)) pair.source = source;
    batch.sources.push_back(source);
    batch.source_rows.push_back(row_of_source);
  }
  return batch;
}

double RowStream::mean_of_rows(const std::function<double(const RowSource&)>& of_row) const {
  double sum = 0.0;
  for (const SourceTree::Leaf& leaf : sources()) sum += leaf.rows * of_row(*leaf.source);
  // Rows that fill an epoch have neither tokens nor labels.
  const double filled = static_cast<double>(tree_.rows_per_epoch()) / static_cast<double>(padded_rows_);
  return sum / tree_.total_rows() * filled;
}

double RowStream::tokens_per_row() const {
  return mean_of_rows([](const RowSource& source) { return source.tokens_per_row(); });
}

std::optional<double> RowStream::labels_per_row() const {
  const auto counts = [](const SourceTree::Leaf& leaf) { return leaf.source->account() != nullptr; };
  if (!std::ranges::all_of(sources(), counts)) return std::nullopt;
  return mean_of_rows([](const RowSource& source) {
    return static_cast<double>(source.account()->labels) / static_cast<double>(source.rows());
  });
}

std::optional<double> RowStream::bytes_per_token() const {
  double bytes = 0.0;
  double tokens = 0.0;
  for (const SourceTree::Leaf& leaf : sources()) {
    const auto known = leaf.source->text_bytes();
    if (!known || leaf.source->tokens() == 0) return std::nullopt;
    double of_token = static_cast<double>(*known) / static_cast<double>(leaf.source->tokens());
    if (const RowAccount* const account = leaf.source->account(); account && account->predicted > 0)
      of_token *= static_cast<double>(account->tokens) / static_cast<double>(account->predicted);
    // A source counts by its share of the rows.
    bytes += leaf.rows * of_token;
    tokens += leaf.rows;
  }
  return bytes / tokens;
}

}  // namespace stepforge
