// SPDX-License-Identifier: Apache-2.0
// Tokens of documents, one after another, that are trained on together.
#pragma once

#include <cstdint>
#include <vector>

namespace stepforge {

/// Two answers to one question, the better one first, each with the question: a document [begin, middle) of a row and the
/// next one [middle, end). Of an answer that is judged alone, the other document is empty: the second if it is desirable, else
/// the first.
struct RowPair {
  int64_t number = 0;  ///< of the pair in its source
  int32_t begin = 0;
  int32_t middle = 0;
  int32_t end = 0;

  friend bool operator==(const RowPair&, const RowPair&) = default;
};

/// One row as a source returns it.
struct Row {
  std::vector<int32_t> tokens;  ///< [seq_len + 1]; the last one is only a label
  /// Ascending indices into `tokens`, in [1, seq_len], at which another document begins.
  std::vector<int32_t> document_starts;
  /// [seq_len + 1], 1 if the token counts in the loss where it is the label, else 0; empty if all count.
  std::vector<uint8_t> counted;
  std::vector<RowPair> pairs = {};  ///< of a source of pairs
  int64_t padding = 0;              ///< of the first seq_len tokens, those at the end that are no document's
};

}  // namespace stepforge
