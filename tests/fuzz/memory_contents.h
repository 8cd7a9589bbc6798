// SPDX-License-Identifier: Apache-2.0
// The bytes of a fuzzer's input as the contents of a file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/content_reader.h"
#include "stepforge/records/json_lines.h"
#include "stepforge/records/table_reader.h"

namespace stepforge {

class MemoryContents : public ContentReader {
 public:
  explicit MemoryContents(std::string_view bytes) : bytes_(bytes) {}

  int64_t read(std::span<char> out) override {
    const std::string_view piece = bytes_.substr(used_, out.size());
    std::copy(piece.begin(), piece.end(), out.begin());
    used_ += piece.size();
    return static_cast<int64_t>(piece.size());
  }
  int64_t position() const override { return static_cast<int64_t>(used_); }

 private:
  std::string_view bytes_;
  size_t used_ = 0;
};

/// Reads all of a table. Traps unless its contents are JSON Lines of objects or faults, one a row, or not UTF-8.
inline void require_rows(ContentReader& table) {
  std::string contents;
  std::string block(1000, '\0');
  for (int64_t count = std::ssize(block); count == std::ssize(block);) {
    count = table.read(block);
    contents += block.substr(0, static_cast<size_t>(count));
  }
  if (find_invalid_utf8(contents) != std::string_view::npos) return;
  if (!contents.empty() && contents.back() != '\n') __builtin_trap();
  int64_t rows = 0;
  const auto location = [](int64_t line) { return std::to_string(line); };
  read_json_lines(contents, std::nullopt, location, [&](std::string_view row) {
    ++rows;
    if (row.front() == kRowFaultMark) return;
    if (row.front() != '{' || row.back() != '}') __builtin_trap();
    try {
      read_json_lines(row, "text", location, [](std::string_view) {});
    } catch (const FormatError& fault) {
      if (std::string_view(fault.what()).find("invalid JSON") != std::string_view::npos) __builtin_trap();
    }
  });
  if (rows != std::count(contents.begin(), contents.end(), '\n')) __builtin_trap();
}

}  // namespace stepforge
