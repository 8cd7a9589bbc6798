// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/known_patterns.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/text/character_classes.h"
#include "stepforge/text/contraction.h"

namespace stepforge {

namespace {

/// Reads the characters of a text one after the other.
class Cursor {
 public:
  Cursor(std::string_view text, size_t position) : text_(text), position_(position) { classify(); }

  bool at_end() const { return position_ == text_.size(); }
  size_t position() const { return position_; }
  /// Not at the end.
  CharacterClass kind() const { return current_.kind; }
  bool is(CharacterClass kind) const { return !at_end() && current_.kind == kind; }
  bool is_space() const { return is(CharacterClass::space) || is(CharacterClass::line_break); }
  bool is_byte(char byte) const { return !at_end() && text_[position_] == byte; }
  void advance() {
    position_ += current_.length;
    classify();
  }
  /// Passes all characters of a class, at most `most`.
  void pass(CharacterClass kind, int most) {
    for (int passed = 0; passed < most && is(kind); ++passed) advance();
  }
  void pass(CharacterClass kind) {
    while (is(kind)) advance();
  }

 private:
  void classify() {
    if (!at_end()) current_ = character_at(text_, position_);
  }

  std::string_view text_;
  size_t position_;
  ClassifiedCharacter current_;
};

/// Where `\s+(?!\S)|\s+` ends: before the last character of white space if a word follows, so that the word has
/// it. With `kLineBreaks`, `\s*[\r\n]+` comes first: after the last line break.
template <bool kLineBreaks>
size_t end_of_space(Cursor cursor) {
  const size_t begin = cursor.position();
  size_t last = begin;
  size_t after_line_break = begin;
  while (cursor.is_space()) {
    last = cursor.position();
    const bool is_line_break = cursor.kind() == CharacterClass::line_break;
    cursor.advance();
    if (is_line_break) after_line_break = cursor.position();
  }
  if (kLineBreaks && after_line_break > begin) return after_line_break;
  return cursor.at_end() || last == begin ? cursor.position() : last;
}

/// kLlama3Pattern with at most kDigits digits together.
template <int kDigits>
size_t llama3_piece(std::string_view text, size_t position) {
  if (const size_t length = contraction<true>(text.substr(position))) return length;
  Cursor cursor(text, position);
  const CharacterClass first = cursor.kind();
  if (first == CharacterClass::letter) {
    cursor.pass(CharacterClass::letter);
    return cursor.position() - position;
  }
  if (first == CharacterClass::number) {
    cursor.pass(CharacterClass::number, kDigits);
    return cursor.position() - position;
  }
  if (first == CharacterClass::line_break) return end_of_space<true>(cursor) - position;
  Cursor second = cursor;
  second.advance();
  if (second.is(CharacterClass::letter)) {
    second.pass(CharacterClass::letter);
    return second.position() - position;
  }
  if (first == CharacterClass::space) {
    if (!cursor.is_byte(' ') || !second.is(CharacterClass::other))
      return end_of_space<true>(cursor) - position;
  }
  second.pass(CharacterClass::other);
  second.pass(CharacterClass::line_break);
  return second.position() - position;
}

size_t gpt2_piece(std::string_view text, size_t position) {
  if (const size_t length = contraction<false>(text.substr(position))) return length;
  const Cursor start(text, position);
  Cursor cursor = start;
  if (cursor.is_byte(' ')) cursor.advance();
  if (cursor.at_end() || cursor.is_space()) return end_of_space<false>(start) - position;
  cursor.pass(cursor.kind());
  return cursor.position() - position;
}

}  // namespace

std::string_view named_pattern(std::string_view name) {
  if (name == "gpt2") return kGpt2Pattern;
  if (name == "llama3") return kLlama3Pattern;
  if (name == "qwen") return kQwen2Pattern;
  if (name == "o200k") return kGpt4oPattern;
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (plain) {
    throw UsageError(
        format("unknown pattern \"{}\"; expected gpt2, llama3, qwen, o200k or a regular expression", name));
  }
  return name;
}

PieceScanner scanner_for(std::string_view pattern) {
  if (pattern == kLlama3Pattern) return llama3_piece<3>;
  if (pattern == kQwen2Pattern) return llama3_piece<1>;
  if (pattern == kGpt2Pattern) return gpt2_piece;
  return nullptr;
}

}  // namespace stepforge
