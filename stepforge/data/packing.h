// SPDX-License-Identifier: Apache-2.0
// Which documents share a row: pure functions of the documents' lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stepforge/base/choices.h"

namespace stepforge {

/// Tokens [begin, end) of a document.
struct Piece {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Pieces of documents by row.
struct PackTable {
  std::vector<Piece> pieces;              ///< row after row, in their order in the row
  std::vector<int64_t> row_begins = {0};  ///< [rows + 1] into `pieces`
  int64_t cut_documents = 0;              ///< longer than a row, of which only the first L tokens are used
  int64_t unused_tokens = 0;              ///< of cut documents and after the last full row
  int64_t unlabelled_documents = 0;       ///< left out, because nothing could be learned from them
  int64_t unlabelled_tokens = 0;          ///< of these

  int64_t rows() const { return static_cast<int64_t>(row_begins.size()) - 1; }
  std::span<const Piece> row(int64_t number) const;
};

/// Distributes documents with these lengths (in tokens; empty ones are left out) over rows of `capacity`
/// tokens. Every document is used exactly once. Except for `hard`, one that is longer than a row is cut.
/// Orders are those of the peers: `soft` begins with PyTorch's randperm(seed), `hard` with NumPy's
/// RandomState(seed).shuffle; equal lengths keep their order. `seed` is used modulo 2^32. `soft` and
/// `best_fit` pack 10,000 documents at a time; of the rows that `best_fit` makes of them, at most one is not
/// more than half full. `budget` takes from the next 200 documents, or more until they could fill a row. Not
/// for Packing::concat and Packing::preset.
PackTable pack_documents(std::span<const int64_t> lengths, int64_t capacity, Packing packing, uint64_t seed);

}  // namespace stepforge
