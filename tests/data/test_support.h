// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room: all rows of a source.
#pragma once

#include <cstdint>

#include "stepforge/data/row_source.h"
#include "tests/dataset/test_support.h"

namespace stepforge::testing {

/// All rows of a source as one batch.
inline Batch batch_of(const RowSource& rows) {
  Batch batch = empty_batch(rows.seq_len(), rows.rows());
  Row row;
  for (int64_t i = 0; i < rows.rows(); ++i) {
    rows.read(i, row);
    append_row(row, static_cast<uint64_t>(i), batch);
  }
  return batch;
}

inline bool same(const Batch& a, const Batch& b) {
  return a.rows == b.rows && a.seq_len == b.seq_len && a.tokens == b.tokens && a.positions == b.positions &&
         a.labels == b.labels && a.cu_seqlens == b.cu_seqlens &&
         a.max_document_length == b.max_document_length && a.row_ids == b.row_ids && a.sources == b.sources &&
         a.valid_labels == b.valid_labels && a.weights == b.weights && a.label_weight == b.label_weight;
}

}  // namespace stepforge::testing
