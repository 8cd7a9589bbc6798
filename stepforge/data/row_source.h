// SPDX-License-Identifier: Apache-2.0
// The interface of everything that rows are drawn from.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "stepforge/base/error.h"
#include "stepforge/data/batch.h"
#include "stepforge/data/packing.h"
#include "stepforge/data/row_account.h"
#include "stepforge/dataset/whole_hash.h"

namespace stepforge {

/// The bytes of the text of `part` tokens, if `whole` tokens have `bytes`; nullopt if these are unknown.
inline std::optional<int64_t> bytes_of_part(std::optional<int64_t> bytes, int64_t part, int64_t whole) {
  if (!bytes) return std::nullopt;
  return std::llround(static_cast<double>(*bytes) * static_cast<double>(part) / static_cast<double>(whole));
}

/// A fixed number of rows with random access. const members may be called from several threads.
class RowSource {
 public:
  RowSource() = default;
  virtual ~RowSource() = default;
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;

  /// Where the rows come from, for messages.
  virtual const std::string& name() const = 0;
  /// Rows in one epoch of this source.
  virtual int64_t rows() const = 0;
  virtual int64_t seq_len() const = 0;
  /// Fills `row` with row number `number` in [0, rows()). Throws FormatError if the stored tokens are bad.
  virtual void read(int64_t number, Row& row) const = 0;
  /// The same row, in which each prompt has the answer of the record before its own, of the first record that of the last one, cut
  /// to the length of a row. Throws Error if the source has no answers that are judged alone.
  virtual void read_mismatched(int64_t /*number*/, Row& /*row*/) const {
    throw Error(name() + ": its rows hold no judged answers");
  }
  /// What attention over row `number` costs, padding included. Sources that can tell without reading the
  /// tokens do so.
  virtual int64_t attention_cost(int64_t number) const {
    Row row;
    read(number, row);
    return stepforge::attention_cost(row.document_starts, seq_len());
  }
  /// Equal for sources with equal rows.
  virtual const std::string& fingerprint() const = 0;
  /// The same of all contents, of which fingerprint() may have a sample: `hash_of` hashes the files.
  virtual std::string content(const HashOfFile& /*hash_of*/) const { return fingerprint(); }
  /// All tokens of the source, including those after the last full row.
  virtual int64_t tokens() const = 0;
  /// Above the number of every pair of the source (Row::pairs); 0 if it has none.
  virtual int64_t pairs() const { return 0; }
  /// Documents of the source: one a row, unless the source counts them.
  virtual int64_t documents() const { return rows(); }
  /// UTF-8 bytes of the text that tokens() stand for; nullopt if unknown.
  virtual std::optional<int64_t> text_bytes() const = 0;
  /// Which documents its rows hold; null unless a table says so.
  virtual const PackTable* pack_table() const { return nullptr; }
  /// What its rows hold and what was left out; null if the source does not count it.
  virtual const RowAccount* account() const { return nullptr; }
  /// The tokens of an average row, without padding.
  double tokens_per_row() const {
    const RowAccount* const counted = account();
    return counted == nullptr ? static_cast<double>(seq_len())
                              : static_cast<double>(counted->tokens) / static_cast<double>(rows());
  }
};

}  // namespace stepforge
