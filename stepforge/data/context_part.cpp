// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/context_part.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/loss_weights.h"

namespace stepforge {

std::vector<TokenRange> token_ranges(const ContextPart& part, int64_t row_length) {
  const int64_t size = row_length / part.granularity();
  if (part.degree == 1 || !part.head_tail) return {{part.index * size, size}};
  return {{part.index * size, size}, {(2 * part.degree - 1 - part.index) * size, size}};
}

Batch take_part(Batch whole, const ContextPart& part) {
  if (part.degree == 1) return whole;
  if (whole.seq_len % part.granularity() != 0) {
    throw Error(format("rows of {} tokens cannot be divided into {} equal chunks", whole.seq_len,
                       part.granularity()));
  }
  Batch batch = empty_batch(whole.seq_len / part.degree, whole.rows);
  batch.part = part;
  batch.rows = whole.rows;
  batch.cu_seqlens = whole.cu_seqlens;
  batch.max_document_length = whole.max_document_length;
  batch.row_ids = whole.row_ids;
  batch.sources = whole.sources;
  batch.source_rows = whole.source_rows;
  batch.row_tokens = whole.row_tokens;
  batch.pairs = whole.pairs;
  const std::vector<TokenRange> held = token_ranges(part, whole.seq_len);
  for (int64_t row = 0; row < whole.rows; ++row) {
    for (const TokenRange& range : held) {
      const auto append = [&](auto& to, const auto& from) {
        const auto first = from.begin() + row * whole.seq_len + range.begin;
        to.insert(to.end(), first, first + range.size);
      };
      append(batch.tokens, whole.tokens);
      append(batch.positions, whole.positions);
      append(batch.labels, whole.labels);
      if (!whole.weights.empty()) append(batch.weights, whole.weights);
      if (!whole.row_tokens.empty())
        batch.real_tokens +=
            std::clamp<int64_t>(whole.row_tokens[static_cast<size_t>(row)] - range.begin, 0, range.size);
    }
  }
  for (const int32_t label : batch.labels) batch.valid_labels += label == kIgnoredLabel ? 0 : 1;
  if (!batch.weights.empty()) batch.label_weight = sum_of_weights(batch);
  for (const Batch& later : whole.ahead) batch.ahead.push_back(take_part(later, part));
  for (const Batch& other : whole.mismatched) batch.mismatched.push_back(take_part(other, part));
  return batch;
}

std::vector<TokenRange> held_tokens(const Batch& batch, const TokenRange& whole) {
  const int64_t row = whole.begin / batch.row_length();
  const int64_t begin = whole.begin - row * batch.row_length();
  std::vector<TokenRange> held;
  int64_t own = row * batch.seq_len;
  for (const TokenRange& range : token_ranges(batch.part, batch.row_length())) {
    const int64_t first = std::max(begin, range.begin);
    const int64_t end = std::min(begin + whole.size, range.begin + range.size);
    if (first < end) held.push_back({own + first - range.begin, end - first});
    own += range.size;
  }
  return held;
}

std::vector<int64_t> index_in_parts(const ContextPart& part, int64_t rows, int64_t row_length) {
  std::vector<int64_t> index(static_cast<size_t>(rows * row_length));
  int64_t next = 0;
  ContextPart other = part;
  for (other.index = 0; other.index < part.degree; ++other.index) {
    const std::vector<TokenRange> held = token_ranges(other, row_length);
    for (int64_t row = 0; row < rows; ++row)
      for (const TokenRange& range : held)
        for (int64_t i = 0; i < range.size; ++i)
          index[static_cast<size_t>(row * row_length + range.begin + i)] = next++;
  }
  return index;
}

}  // namespace stepforge
