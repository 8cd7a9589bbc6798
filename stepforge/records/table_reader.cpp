// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/table_reader.h"

#include <algorithm>

namespace stepforge {

int64_t TableReader::read(std::span<char> out) {
  size_t filled = 0;
  while (filled < out.size()) {
    if (used_ == row_.size()) {
      row_.clear();
      used_ = 0;
      if (!next_line()) break;
    }
    const size_t count = std::min(out.size() - filled, row_.size() - used_);
    std::copy_n(row_.begin() + static_cast<std::ptrdiff_t>(used_), count,
                out.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += count;
    used_ += count;
  }
  return static_cast<int64_t>(filled);
}

bool TableReader::next_line() {
  try {
    if (!next_row(row_)) return false;
  } catch (const RowFault& fault) {
    row_ = kRowFaultMark + std::string(fault.what());
    std::replace(row_.begin(), row_.end(), '\n', ' ');
  }
  row_ += '\n';
  return true;
}

void append_json_escaped(std::string& json, std::string_view text) {
  const auto is_escaped = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\'; };
  while (!text.empty()) {
    const auto plain = static_cast<size_t>(std::find_if(text.begin(), text.end(), is_escaped) - text.begin());
    json += text.substr(0, plain);
    if (plain == text.size()) return;
    const char special = text[plain];
    if (special == '"' || special == '\\') {
      json += '\\';
      json += special;
    } else if (special == '\n') {
      json += "\\n";
    } else {
      constexpr std::string_view kDigits = "0123456789abcdef";
      json += "\\u00";
      json += kDigits[static_cast<uint8_t>(special) >> 4];
      json += kDigits[static_cast<uint8_t>(special) & 0xF];
    }
    text.remove_prefix(plain + 1);
  }
}

void append_json_text(std::string& json, std::string_view text) {
  json += '"';
  append_json_escaped(json, text);
  json += '"';
}

}  // namespace stepforge
