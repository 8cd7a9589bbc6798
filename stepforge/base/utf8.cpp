// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/utf8.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "stepforge/base/byte_vector.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

uint8_t byte_at(std::string_view text, size_t index) {
  return static_cast<uint8_t>(text[index]);
}

/// What the first byte of a sequence says: the total length and the allowed range of the second byte.
struct LeadByte {
  size_t length = 0;
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

/// The number of valid bytes at the start of the sequence that `text` begins with.
size_t valid_prefix(std::string_view text, const LeadByte& lead) {
  size_t valid = 1;
  while (valid < lead.length && valid < text.size()) {
    const uint8_t byte = byte_at(text, valid);
    const uint8_t low = valid == 1 ? lead.second_low : 0x80;
    const uint8_t high = valid == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) break;
    ++valid;
  }
  return valid;
}

}  // namespace

size_t utf8_sequence_length(std::string_view text) {
  if (text.empty()) return 0;
  const LeadByte lead = lead_byte(byte_at(text, 0));
  if (lead.length == 0) return 0;
  return valid_prefix(text, lead) == lead.length ? lead.length : 0;
}

bool is_incomplete_utf8(std::string_view text) {
  if (text.empty()) return false;
  const LeadByte lead = lead_byte(byte_at(text, 0));
  return text.size() < lead.length && valid_prefix(text, lead) == text.size();
}

size_t ascii_prefix(std::string_view text) {
  size_t length = 0;
  for (; text.size() - length >= kVectorBytes; length += kVectorBytes) {
    const uint64_t wide = high_bits(load_bytes(text.data() + length));
    if (wide != 0) return length + static_cast<size_t>(std::countr_zero(wide));
  }
  while (length < text.size() && byte_at(text, length) < 0x80) ++length;
  return length;
}

size_t find_invalid_utf8(std::string_view text) {
  const auto continues = [text](size_t index) { return (byte_at(text, index) & 0xC0) == 0x80; };
  size_t offset = 0;
  while (offset < text.size()) {
    const uint8_t byte = byte_at(text, offset);
    const size_t left = text.size() - offset;
    size_t length = 0;
    if (byte < 0x80) {
      length = ascii_prefix(text.substr(offset));
    } else if (byte >= 0xC2 && byte <= 0xDF && left >= 2) {  // these two kinds are most of what is not ASCII
      length = continues(offset + 1) ? 2 : 0;
    } else if (byte >= 0xE1 && byte <= 0xEC && left >= 3) {
      length = continues(offset + 1) && continues(offset + 2) ? 3 : 0;
    } else {
      length = utf8_sequence_length(text.substr(offset));
    }
    if (length == 0) return offset;
    offset += length;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, std::string_view source, size_t offset) {
  const size_t found = find_invalid_utf8(text);
  if (found == std::string_view::npos) return;
  throw FormatError(
      format("{}: byte {} is 0x{:02x}, which is not valid UTF-8 there; convert the text, for example with "
             "iconv -f latin1 -t utf-8",
             source, offset + found, static_cast<uint32_t>(byte_at(text, found))));
}

char32_t decode_code_point(std::string_view text) {
  const uint8_t first = byte_at(text, 0);
  if (first < 0x80) return first;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t code_point = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) code_point = (code_point << 6) | (byte_at(text, i) & 0x3FU);
  return code_point;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&text](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

namespace {

/// U+0000 to U+001F and U+007F to U+009F.
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F);
}

/// Appends the character or byte at the start of `text` to `shown`, escaped unless it is printable or in `kept`. Returns
/// its length.
size_t append_printable(std::string& shown, std::string_view text, std::string_view kept) {
  const size_t length = utf8_sequence_length(text);
  const char32_t c = length > 0 ? decode_code_point(text) : byte_at(text, 0);
  if (length > 0 && (!is_control(c) || kept.find(text[0]) != std::string_view::npos)) {
    shown += text.substr(0, length);
  } else {
    shown += format("\\x{:02X}", static_cast<uint32_t>(c));
  }
  return std::max<size_t>(length, 1);
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) text.remove_prefix(append_printable(shown, text, kept));
  return shown;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(text, "\n\t");
}

std::string printable_line(std::string_view text) {
  return escaped(text, "");
}

std::string quoted_for_message(std::string_view text) {
  constexpr size_t kMaxShown = 100;
  std::string shown = "\"";
  size_t position = 0;
  while (position < text.size() && position < kMaxShown)
    position += append_printable(shown, text.substr(position), "");
  shown += position < text.size() ? "...\"" : "\"";
  return shown;
}

}  // namespace stepforge
