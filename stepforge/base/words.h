// SPDX-License-Identifier: Apache-2.0
// Lists of words in one constant: "beta1 beta2 eps".
#pragma once

#include <cstddef>
#include <string_view>

namespace stepforge {

/// Whether `words`, a list separated by single spaces, contains this word.
constexpr bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::size_t end = words.find(' ');
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 1);
  }
  return false;
}

}  // namespace stepforge
