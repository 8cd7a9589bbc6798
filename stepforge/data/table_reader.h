// SPDX-License-Identifier: Apache-2.0
// A table as JSON Lines: each row is an object of its columns, on a line of its own. So a table is read as any JSON
// Lines are, and line n of the contents is row n.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "stepforge/data/content_reader.h"

namespace stepforge {

class TableReader : public ContentReader {
 public:
  int64_t read(std::span<char> out) final;

 protected:
  /// Writes the next row as JSON without a line break; false after the last. At most kMaxJsonLineBytes.
  virtual bool next_row(std::string& json) = 0;

 private:
  std::string row_;
  size_t used_ = 0;  ///< bytes of it
};

/// Appends `text` as it stands between the quotes of a JSON string.
void append_json_escaped(std::string& json, std::string_view text);

}  // namespace stepforge
