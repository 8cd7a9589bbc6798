// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/synthetic.h"

#include <algorithm>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

void require(bool allowed, std::string_view name, int64_t value, std::string_view rule) {
  if (!allowed) throw UsageError(format("synthetic data: {} is {}: it must be {}", name, value, rule));
}

SyntheticOptions checked(const SyntheticOptions& options) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  require(options.vocab_size >= 1 && options.vocab_size < kLimit, "the vocabulary size", options.vocab_size,
          "from 1 to 2^31 - 1");
  require(options.seq_len >= 1 && options.seq_len < kLimit, "the sequence length", options.seq_len,
          "from 1 to 2^31 - 1");
  require(options.rows >= 1 && options.rows < kLimit, "the number of rows", options.rows,
          "from 1 to 2^31 - 1");
  require(options.first_row >= 0, "the first row", options.first_row, "at least 0");
  require(options.document_length >= 0 && options.document_length < kLimit, "the mean document length",
          options.document_length, "from 0 (one document per row) to 2^31 - 1");
  return options;
}

}  // namespace

SyntheticSource::SyntheticSource(const SyntheticOptions& options)
    : options_(checked(options)),
      key_(stream_key(options.seed, "synthetic tokens")),
      successor_(static_cast<uint64_t>(options.vocab_size),
                 stream_key(options.seed, "synthetic successors")) {
  fingerprint_ =
      content_hash(format("synthetic {} {} {} {} {} {}", options.seed, options.vocab_size, options.seq_len,
                          options.rows, options.first_row, options.document_length));
}

/// Where the document ends that begins at token `start` of a row; past the row's last label if none follows.
int64_t SyntheticSource::next_start(int64_t number, int64_t start) const {
  if (options_.document_length == 0) return options_.seq_len + 1;
  const auto row_number = static_cast<uint64_t>(options_.first_row + number);
  // Uniform in [1, 2 mean - 1].
  const auto span = static_cast<uint64_t>(2 * options_.document_length - 1);
  const auto words = philox(key_, row_number, static_cast<uint64_t>(start));
  return start + 1 + static_cast<int64_t>((words[2] * span) >> 32);
}

int64_t SyntheticSource::attention_cost(int64_t number) const {
  std::vector<int32_t> starts;
  for (int64_t start = next_start(number, 0); start < options_.seq_len; start = next_start(number, start))
    starts.push_back(static_cast<int32_t>(start));
  return stepforge::attention_cost(starts, options_.seq_len);
}

void SyntheticSource::read(int64_t number, Row& row) const {
  const auto vocab_size = static_cast<uint64_t>(options_.vocab_size);
  const auto row_number = static_cast<uint64_t>(options_.first_row + number);
  const auto count = static_cast<size_t>(options_.seq_len) + 1;
  row.tokens.resize(count);
  row.document_starts.clear();
  row.counted.clear();
  size_t next = 0;
  uint64_t token = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto words = philox(key_, row_number, i);
    const bool starts = i == next;
    const bool random = starts || words[0] % 8 == 0;
    token = random ? (uint64_t{words[1]} * vocab_size) >> 32 : successor_(token);
    row.tokens[i] = static_cast<int32_t>(token);
    if (!starts) continue;
    if (i > 0) row.document_starts.push_back(static_cast<int32_t>(i));
    next = static_cast<size_t>(next_start(number, static_cast<int64_t>(i)));
  }
}

}  // namespace stepforge
