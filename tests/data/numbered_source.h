// SPDX-License-Identifier: Apache-2.0
// Rows without files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/row_source.h"

namespace stepforge::testing {

/// Each token of row i is i, in a source's own range.
class NumberedSource : public RowSource {
 public:
  NumberedSource(int64_t rows, int32_t base, int64_t fail_at = -1)
      : rows_(rows), base_(base), fail_at_(fail_at) {}
  const std::string& name() const override { return name_; }
  int64_t rows() const override { return rows_; }
  int64_t seq_len() const override { return 2; }
  void read(int64_t number, Row& row) const override {
    if (number == fail_at_) throw FormatError("bad row");
    row.tokens.assign(3, base_ + static_cast<int32_t>(number));
    row.document_starts.clear();
    row.counted.clear();
  }
  const std::string& fingerprint() const override { return fingerprint_; }
  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return documents_; }
  std::optional<int64_t> text_bytes() const override { return rows_ * 6; }

  /// Says that it has so many, for shares of them.
  void count(int64_t tokens, int64_t documents) {
    tokens_ = tokens;
    documents_ = documents;
  }

 private:
  int64_t rows_;
  int32_t base_;
  int64_t fail_at_;
  int64_t tokens_ = rows_ * 2;
  int64_t documents_ = rows_;
  std::string name_ = "numbers";
  std::string fingerprint_ = format("numbers {} {}", rows_, base_);
};

}  // namespace stepforge::testing
