// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/decoder_stages.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "stepforge/base/utf8.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/replace.h"
#include "stepforge/text/utf8_repair.h"

namespace stepforge {

void JoinStage::begin() {
  if (!inside_ && any_) next().text(" ");
  inside_ = any_ = true;
}

void JoinStage::text(std::string_view part) {
  begin();
  next().text(part);
}

void JoinStage::end_token() {
  begin();
  inside_ = false;
  next().end_token();
}

void FuseStage::finish() {
  next().end_token();
  next().finish();
}

void ByteLevelStage::token(std::string token) {
  const std::string bytes = from_byte_alphabet(token).value_or(token);
  if (raw_) return next().text(bytes);
  held_ += bytes;
  std::string complete;
  move_complete_utf8(held_, complete);
  next().text(complete);
}

void ByteLevelStage::finish() {
  if (!held_.empty()) next().text(kReplacementCharacter);
  next().end_token();
  next().finish();
}

namespace {

/// The byte of "<0x0A>". Hugging Face takes "<0x+A>" as well.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  uint8_t byte = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (fault != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return static_cast<char>(byte);
}

}  // namespace

void ByteFallbackStage::token(std::string token) {
  if (const auto byte = byte_of(token)) {
    bytes_ += *byte;
    return;
  }
  pass_bytes();
  pass_token(token);
}

void ByteFallbackStage::pass_bytes() {
  if (bytes_.empty()) return;
  if (find_invalid_utf8(bytes_) == std::string_view::npos) {
    pass_token(bytes_);
  } else {
    for (size_t i = 0; i < bytes_.size(); ++i) pass_token(kReplacementCharacter);
  }
  bytes_.clear();
}

void ByteFallbackStage::finish() {
  pass_bytes();
  next().finish();
}

void StripStage::text(std::string_view part) {
  while (!part.empty()) {
    const std::string_view character = part.substr(0, utf8_sequence_length(part));
    part.remove_prefix(character.size());
    if (character == content_) {
      if (beginning_ && removed_ < start_) {
        ++removed_;
      } else {
        ++held_;
        if (held_ > stop_) {
          --held_;
          next().text(content_);
        }
      }
      continue;
    }
    beginning_ = false;
    for (; held_ > 0; --held_) next().text(content_);
    next().text(character);
  }
}

void StripStage::end_token() {
  held_ = removed_ = 0;
  beginning_ = true;
  next().end_token();
}

void ReplaceStage::token(std::string token) {
  pass_token(replace_matches(token, pattern_, content_, scratch_, max_replaced(token.size())));
}

void MetaspaceStage::text(std::string_view part) {
  while (!part.empty()) {
    const size_t at = part.find(replacement_);
    next().text(part.substr(0, at));
    if (at == std::string_view::npos) return;
    if (!removes_) next().text(" ");
    part.remove_prefix(at + replacement_.size());
  }
}

void MetaspaceStage::end_token() {
  removes_ = false;
  next().end_token();
}

void BpeStage::token(std::string token) {
  if (held_) pass_token(replace_text(*held_, suffix_, " "));
  held_ = std::move(token);
}

namespace {

/// Joins English punctuation and abbreviations to the word before them.
std::string cleaned_up(std::string text) {
  constexpr std::array<std::pair<const char*, const char*>, 11> replacements = {{{" .", "."},
                                                                                 {" ?", "?"},
                                                                                 {" !", "!"},
                                                                                 {" ,", ","},
                                                                                 {" ' ", "'"},
                                                                                 {" n't", "n't"},
                                                                                 {" 'm", "'m"},
                                                                                 {" do not", " don't"},
                                                                                 {" 's", "'s"},
                                                                                 {" 've", "'ve"},
                                                                                 {" 're", "'re"}}};
  for (const auto& [old, content] : replacements) text = replace_text(text, old, content);
  return text;
}

}  // namespace

void WordPieceStage::token(std::string token) {
  if (!std::exchange(first_, false))
    token = token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token;
  pass_token(cleanup_ ? cleaned_up(std::move(token)) : token);
}

void CtcStage::token(std::string token) {
  if (last_ == token) return;
  std::string text = pad_.empty() ? token : replace_text(token, pad_, "");
  if (cleanup_) text = replace_text(cleaned_up(std::move(text)), delimiter_, " ");
  if (!text.empty()) pass_token(text);
  last_ = std::move(token);
}

void BpeStage::finish() {
  if (held_) pass_token(replace_text(*held_, suffix_, ""));
  next().finish();
}

}  // namespace stepforge
