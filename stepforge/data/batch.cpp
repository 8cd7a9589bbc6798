// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/batch.h"

#include <algorithm>
#include <limits>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

int64_t attention_cost(std::span<const int32_t> document_starts, int64_t seq_len) {
  int64_t cost = 0;
  int64_t begin = 0;
  const auto add_document = [&](int64_t end) {
    cost += (end - begin) * (end - begin);
    begin = end;
  };
  // A document may begin at the last label, which is no token of the row.
  for (const int32_t start : document_starts) add_document(start);
  if (begin < seq_len) add_document(seq_len);
  return cost;
}

Batch empty_batch(int64_t seq_len, int64_t rows) {
  if (seq_len < 1 || rows < 0 || (rows > 0 && seq_len > std::numeric_limits<int32_t>::max() / rows)) {
    throw UsageError(format(
        "a batch of {} rows of {} tokens: cu_seqlens are 32-bit integers, so it must hold between 1 and {} "
        "tokens; use a smaller local batch or sequence length",
        rows, seq_len, std::numeric_limits<int32_t>::max()));
  }
  Batch batch;
  batch.seq_len = seq_len;
  const auto tokens = static_cast<size_t>(seq_len * rows);
  batch.tokens.reserve(tokens);
  batch.positions.reserve(tokens);
  batch.labels.reserve(tokens);
  batch.row_ids.reserve(static_cast<size_t>(rows));
  batch.cu_seqlens.push_back(0);
  return batch;
}

namespace {

/// Appends tokens [begin, end) of the row, which are part of one document. The last label is ignored if the
/// document ends there, and so are labels that do not count.
void append_part(const Row& row, int32_t begin, int32_t end, bool document_ends, Batch& batch) {
  for (int32_t i = begin; i < end; ++i) {
    const auto index = static_cast<size_t>(i);
    const bool ignored =
        (document_ends && i + 1 == end) || (!row.counted.empty() && row.counted[index + 1] == 0);
    batch.tokens.push_back(row.tokens[index]);
    batch.positions.push_back(i - begin);
    batch.labels.push_back(ignored ? kIgnoredLabel : row.tokens[index + 1]);
    batch.valid_labels += ignored ? 0 : 1;
  }
  batch.cu_seqlens.push_back(batch.cu_seqlens.back() + (end - begin));
  batch.max_document_length = std::max(batch.max_document_length, end - begin);
}

Answer answer_in(const Batch& batch, int32_t begin, int32_t end) {
  const auto labels =
      std::span(batch.labels).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  const auto ignored = std::ranges::count(labels, kIgnoredLabel);
  return {.begin = begin, .end = end, .labels = static_cast<int32_t>(std::ssize(labels) - ignored)};
}

}  // namespace

void append_row(const Row& row, uint64_t row_id, Batch& batch) {
  int32_t begin = 0;
  for (const int32_t start : row.document_starts) {
    append_part(row, begin, start, /*document_ends=*/true, batch);
    begin = start;
  }
  const auto seq_len = static_cast<int32_t>(batch.seq_len);
  if (begin < seq_len) append_part(row, begin, seq_len, /*document_ends=*/false, batch);
  const auto first = static_cast<int32_t>(batch.rows * batch.seq_len);
  for (const RowPair& pair : row.pairs) {
    batch.pairs.push_back({.number = pair.number,
                           .answers = {answer_in(batch, first + pair.begin, first + pair.middle),
                                       answer_in(batch, first + pair.middle, first + pair.end)}});
  }
  batch.row_ids.push_back(row_id);
  batch.row_tokens.push_back(static_cast<int32_t>(batch.seq_len - row.padding));
  batch.real_tokens += batch.seq_len - row.padding;
  ++batch.rows;
}

void append_padding(int64_t seq_len, Row& row) {
  const auto wanted = static_cast<size_t>(seq_len) + 1;
  row.padding = std::max<int64_t>(0, seq_len - std::ssize(row.tokens));
  if (row.counted.empty()) row.counted.assign(row.tokens.size(), 1);
  for (size_t start = row.tokens.size(); start < wanted; start += static_cast<size_t>(kPaddingDocument)) {
    if (start > 0) row.document_starts.push_back(static_cast<int32_t>(start));
  }
  row.tokens.resize(wanted, 0);
  row.counted.resize(wanted, 0);
}

Batch padding_batch(int64_t seq_len, int64_t rows) {
  Batch batch = empty_batch(seq_len, rows);
  for (int64_t number = 0; number < rows; ++number) {
    Row row;
    append_padding(seq_len, row);
    append_row(row, static_cast<uint64_t>(number), batch);
    batch.sources.push_back(kNoSource);
    batch.source_rows.push_back(-1);
  }
  return batch;
}

}  // namespace stepforge
