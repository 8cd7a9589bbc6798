// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_pairs.h"

#include <string>

#include "stepforge/base/json.h"
#include "stepforge/base/staged.h"
#include "stepforge/prove/exact_model.h"

namespace stepforge {

namespace {

constexpr size_t kRecords = 50;

/// A part of the text of record `number`.
std::string letters_of(size_t number, size_t first, size_t size) {
  std::string letters;
  for (size_t k = 0; k < size; ++k) letters += static_cast<char>('a' + (first + number * 7 + k * k * 3) % 26);
  return letters;
}

}  // namespace

void write_exact_pairs(const std::filesystem::path& file) {
  constexpr size_t kBetter = kExactAnswer - 1;
  std::string lines;
  for (size_t i = 0; i < kRecords; ++i) {
    const auto text = [i](size_t first, size_t size) { return letters_of(i, first, size); };
    const size_t prompt = 3 + i % 2;
    const size_t other = (prompt == 3 ? 3 : 1) + i / 2 % 3;
    lines += Json{{"prompt", text(0, prompt)}, {"chosen", text(5, kBetter)}, {"rejected", text(12, other)}}
                 .dump() +
             "\n";
  }
  write_file_atomic(file, lines);
}

void write_exact_judged_answers(const std::filesystem::path& file) {
  constexpr size_t kLetters = 13;
  std::string lines;
  for (size_t i = 0; i < kRecords; ++i) {
    const size_t answer = 3 + i % 3;
    lines += Json{{"prompt", letters_of(i, 0, kLetters - answer)},
                  {"completion", letters_of(i, 5, answer)},
                  {"label", i % 5 < 3}}
                 .dump() +
             "\n";
  }
  write_file_atomic(file, lines);
}

}  // namespace stepforge
