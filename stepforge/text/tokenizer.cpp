// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer.h"

#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/utf8_repair.h"

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

/// Each token stands for its bytes.
class ByteDecoder final : public TokenDecoder {
 public:
  ByteDecoder(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  void push(int32_t id, std::string& bytes) override {
    if (!skip_special_ || !tokenizer_.is_special(id)) bytes += tokenizer_.token_bytes(id);
  }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encoder()->append(text, ids);
  return ids;
}

std::unique_ptr<TokenDecoder> Tokenizer::decoder(bool skip_special) const {
  return std::make_unique<ByteDecoder>(*this, skip_special);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  const std::unique_ptr<TokenDecoder> decoder = this->decoder(skip_special);
  std::string bytes;
  for (const int32_t id : ids) decoder->push(id, bytes);
  decoder->finish(bytes);
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
  decoder_->push(id, held_);
  std::string text;
  move_complete_utf8(held_, text);
  return text;
}

std::string StreamDecoder::finish() {
  decoder_->finish(held_);
  return repaired_utf8(std::exchange(held_, {}));
}

}  // namespace stepforge
