// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/character_classes.h"

#include <string>

#include "stepforge/text/splitter.h"

namespace stepforge {

namespace {

constexpr char32_t kCodePoints = 0x110000;

/// Asks the regular expressions themselves, so that both always agree.
std::vector<CharacterClass> make_classes() {
  std::string all;
  std::vector<char32_t> code_points;
  std::vector<size_t> begins;
  for (char32_t point = 0; point < kCodePoints; ++point) {
    if (point >= 0xD800 && point < 0xE000) continue;
    begins.push_back(all.size());
    code_points.push_back(point);
    append_utf8(all, point);
  }
  std::vector<CharacterClass> classes(kCodePoints, CharacterClass::other);
  const auto mark = [&](std::string_view pattern, CharacterClass kind) {
    const SplitPattern runs(pattern, "a class of characters");
    SplitPattern::Scratch scratch;
    size_t character = 0;
    for (size_t from = 0; from < all.size();) {
      const auto run = runs.find(all, from, scratch);
      if (!run) return;
      while (begins[character] < run->begin) ++character;
      for (; character < begins.size() && begins[character] < run->end; ++character)
        classes[code_points[character]] = kind;
      from = run->end;
    }
  };
  mark(R"(\p{L}+)", CharacterClass::letter);
  mark(R"(\p{N}+)", CharacterClass::number);
  mark(R"(\s+)", CharacterClass::space);
  mark(R"([\r\n]+)", CharacterClass::line_break);
  return classes;
}

}  // namespace

CharacterClass class_of_code_point(char32_t code_point) {
  static const std::vector<CharacterClass> classes = make_classes();
  return classes[code_point];
}

}  // namespace stepforge
