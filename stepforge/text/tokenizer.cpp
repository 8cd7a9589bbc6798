// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer.h"

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

void append_visible(std::string& text, std::string_view character) {
  if (character == "\n") {
    text += "\\n";
  } else if (character == "\r") {
    text += "\\r";
  } else if (character == "\t") {
    text += "\\t";
  } else if (decode_code_point(character) < 0x20 || character == "\x7F") {
    text += format("\\x{:02X}", static_cast<uint32_t>(static_cast<uint8_t>(character[0])));
  } else {
    text += character;
  }
}

/// Moves complete characters from `bytes` to `text`. Bytes that cannot become a character become U+FFFD, one
/// per longest ill-formed prefix, as Unicode recommends. An incomplete character at the end stays.
void move_complete(std::string& bytes, std::string& text) {
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

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encoder()->append(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += token_bytes(id);
  return bytes;
}

std::string Tokenizer::token_text(int32_t id) const {
  std::string text;
  std::string_view rest = token_bytes(id);
  while (!rest.empty()) {
    const size_t length = utf8_sequence_length(rest);
    if (length == 0) {
      text += format("\\x{:02X}", static_cast<uint32_t>(static_cast<uint8_t>(rest[0])));
    } else {
      append_visible(text, rest.substr(0, length));
    }
    rest.remove_prefix(length == 0 ? 1 : length);
  }
  return text;
}

std::string StreamDecoder::push(int32_t id) {
  held_ += tokenizer_.token_bytes(id);
  std::string text;
  move_complete(held_, text);
  return text;
}

std::string StreamDecoder::finish() {
  const bool incomplete = !held_.empty();
  held_.clear();
  return std::string(incomplete ? kReplacementCharacter : "");
}

}  // namespace stepforge
