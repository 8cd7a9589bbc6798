// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/utf8_repair.h"

#include <string_view>

#include "stepforge/base/utf8.h"

namespace stepforge {

void move_complete_utf8(std::string& bytes, std::string& text) {
  std::string_view rest = bytes;
  while (!rest.empty() && !is_incomplete_utf8(rest)) {
    size_t length = utf8_sequence_length(rest);
    if (length > 0) {
      text += rest.substr(0, length);
    } else {
      length = 1;
      while (length < rest.size() && is_incomplete_utf8(rest.substr(0, length + 1))) ++length;
      text += kReplacementCharacter;
    }
    rest.remove_prefix(length);
  }
  bytes.erase(0, bytes.size() - rest.size());
}

std::string repaired_utf8(std::string bytes) {
  if (find_invalid_utf8(bytes) == std::string_view::npos) return bytes;
  std::string text;
  move_complete_utf8(bytes, text);
  if (!bytes.empty()) text += kReplacementCharacter;
  return text;
}

}  // namespace stepforge
