// SPDX-License-Identifier: Apache-2.0
// The endings of English words that patterns of byte-level BPE split off.
#pragma once

#include <cstddef>
#include <string_view>

namespace stepforge {

/// Length of 's, 't, 're, 've, 'm, 'll or 'd at the start of `text`, or 0.
template <bool kAnyCase>
size_t contraction(std::string_view text) {
  constexpr std::string_view kLongS = "\u017F";  // folds to "s"
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto letter = [&](size_t at) {
    const char byte = text[at];
    return kAnyCase && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + ('a' - 'A')) : byte;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return text.size() > 2 && letter(2) == 'e' ? 3 : 0;
    case 'l':
      return text.size() > 2 && letter(2) == 'l' ? 3 : 0;
    default:
      return kAnyCase && text.substr(1).starts_with(kLongS) ? 1 + kLongS.size() : 0;
  }
}

}  // namespace stepforge
