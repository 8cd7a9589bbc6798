// SPDX-License-Identifier: Apache-2.0
// Comma-separated values (RFC 4180), and the same with tabs, as JSON Lines. The first line names the columns; every
// value is a string. A field in quotes may hold separators, line breaks and doubled quotes; a quote inside of a field
// without quotes stands for itself. Lines end with LF or CR LF; empty lines are skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/records/file_format.h"
#include "stepforge/records/table_reader.h"

namespace stepforge {

extern const FileFormat kCsvFormat;
/// The same with tabs.
extern const FileFormat kTsvFormat;

class CsvReader : public TableReader {
 public:
  /// Reads the header. `name` is that of the file. Throws FormatError naming it if there is no header or if a name in
  /// it is empty or stands twice. A row of another number of fields than the header is malformed. Reading throws FormatError
  /// naming the row, counted from 1 after the header, if its end is not known: it has more than `max_row_bytes` as JSON, a
  /// quote that is not closed, text after a closing quote or a carriage return alone.
  CsvReader(std::unique_ptr<ContentReader> input, char separator, std::string name,
            int64_t max_row_bytes = kMaxRecordBytes);

  int64_t position() const override { return input_->position(); }

 private:
  enum class Ending : uint8_t { separator, line, file };

  bool next_row(std::string& json) override;
  void read_header();
  Ending read_field(std::string& json);
  void read_plain(std::string& json);
  void read_quoted(std::string& json);
  Ending read_ending();
  void append(std::string& json, std::string_view piece) const;
  bool skip_empty_lines();
  bool at_end() { return rest().empty(); }
  std::string_view rest();
  void use(size_t count) { used_ += count; }
  [[noreturn]] void fail(std::string_view fault) const;

  std::unique_ptr<ContentReader> input_;
  char separator_;
  std::string name_;
  int64_t max_row_bytes_;
  std::string block_;
  size_t used_ = 0;                ///< bytes of the block
  std::vector<std::string> keys_;  ///< of the columns, as "\"name\":\""
  int64_t row_ = 0;                ///< 0: the header
};

}  // namespace stepforge
