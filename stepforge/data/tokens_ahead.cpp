// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/tokens_ahead.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/data/loss_weights.h"

namespace stepforge {

namespace {

/// Moves the values of a document `ahead` places forward, and fills its end.
template <typename T>
void move_ahead(std::vector<T>& values, int64_t begin, int64_t end, int64_t ahead, T fill) {
  const auto first = values.begin() + begin;
  const auto last = values.begin() + end;
  const int64_t moved = std::min(ahead, end - begin);
  std::fill(std::copy(first + moved, last, first), last, fill);
}

Batch moved_ahead(Batch batch, int64_t ahead) {
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i];
    const int64_t end = batch.cu_seqlens[i + 1];
    move_ahead(batch.tokens, begin, end, ahead, kNoToken);
    move_ahead(batch.labels, begin, end, ahead, kIgnoredLabel);
    if (!batch.weights.empty()) move_ahead(batch.weights, begin, end, ahead, 0.0F);
  }
  const auto tokens = static_cast<int64_t>(batch.labels.size());
  batch.valid_labels = tokens - std::ranges::count(batch.labels, kIgnoredLabel);
  if (!batch.weights.empty()) batch.label_weight = sum_of_weights(batch);
  return batch;
}

}  // namespace

void add_tokens_ahead(Batch& batch, int64_t depths) {
  if (depths > 0 && batch.part.degree > 1)
    throw Error("tokens further ahead: a rank has only a part of each row");
  std::vector<Batch> ahead;
  for (int64_t depth = 1; depth <= depths; ++depth) ahead.push_back(moved_ahead(batch, depth));
  batch.ahead = std::move(ahead);
}

}  // namespace stepforge
