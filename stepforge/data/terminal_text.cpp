// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/terminal_text.h"

namespace stepforge {

namespace {

/// The control characters U+0080 to U+009F are two bytes in UTF-8, C2 and the character itself.
constexpr unsigned char kHighControlLead = 0xC2;

bool is_high_control(unsigned char lead, unsigned char byte) {
  return lead == kHighControlLead && byte >= 0x80 && byte <= 0x9F;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string shown;
  shown.reserve(text.size());
  const auto escape = [&](unsigned char byte) {
    shown += "\\x";
    shown += kDigits[byte / kDigits.size()];
    shown += kDigits[byte % kDigits.size()];
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (is_high_control(byte, next)) {
      escape(next);
      ++i;
    } else if ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7F) {
      escape(byte);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

}  // namespace stepforge
