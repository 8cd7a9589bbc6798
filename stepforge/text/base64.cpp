// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/base64.h"

#include <cstdint>

namespace stepforge {

namespace {

int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t held = 0;
  int bits = 0;
  for (const char c : text) {
    const int digit = digit_of(c);
    if (digit < 0) return std::nullopt;
    held = held << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits);
    held &= (uint32_t{1} << bits) - 1;
  }
  if (held != 0) return std::nullopt;
  return bytes;
}

}  // namespace stepforge
