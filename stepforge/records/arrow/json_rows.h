// SPDX-License-Identifier: Apache-2.0
// Rows of a table as JSON objects.
//
// Numbers, texts, lists and structs become what they are in JSON, a map with texts as keys an object, a value of a dictionary
// the value itself, dates, times and decimals texts as Arrow writes them (2026-01-31 12:00:00). Null is null, and so are NaN and
// infinities, as in pandas' to_json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <arrow/type_fwd.h>

namespace stepforge {

class JsonRows {
 public:
  /// Throws FormatError that begins with `file` and names the column if a column's type has no form in JSON, such as bytes, or
  /// if two columns have one name.
  JsonRows(const arrow::Schema& schema, const std::string& file, int64_t max_row_bytes);

  /// Appends a row of a batch of the schema. The batch must have passed ValidateFull(). Throws FormatError
  /// ("a row of more than ...") if the row takes more than max_row_bytes.
  void append(const arrow::RecordBatch& batch, int64_t row, std::string& out) const;

 private:
  int64_t max_row_bytes_;
  std::vector<std::string> keys_;  ///< of the columns, quoted and with a colon
};

}  // namespace stepforge
