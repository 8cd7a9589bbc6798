// SPDX-License-Identifier: Apache-2.0
// A table as JSON Lines: each row is an object of its columns, on a line of its own. So a table is read as any JSON
// Lines are (read_table_rows() in records/json_lines.h), and line n of the contents is row n.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/records/content_reader.h"

namespace stepforge {

/// What is wrong with a row, without its place. The rows after it can be read.
class RowFault : public FormatError {
 public:
  using FormatError::FormatError;
};

/// A malformed row is a line that begins with this byte, as no JSON does, and then says what is wrong.
inline constexpr char kRowFaultMark = '\x18';

class TableReader : public ContentReader {
 public:
  int64_t read(std::span<char> out) final;

 protected:
  /// Writes the next row as JSON without a line break; false after the last. At most kMaxRecordBytes. Throws RowFault
  /// for a row that is left out, and FormatError naming the place if no more rows can be read.
  virtual bool next_row(std::string& json) = 0;

 private:
  bool next_line();

  std::string row_;
  size_t used_ = 0;  ///< bytes of it
};

/// Appends `text` as it stands between the quotes of a JSON string.
void append_json_escaped(std::string& json, std::string_view text);
/// The same with the quotes.
void append_json_text(std::string& json, std::string_view text);

}  // namespace stepforge
