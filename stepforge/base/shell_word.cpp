// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/shell_word.h"

#include <algorithm>

namespace stepforge {

namespace {

bool means_itself(char c) {
  constexpr std::string_view kPlain = "_./-+,:@%=";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kPlain.find(c) != std::string_view::npos;
}

}  // namespace

std::string shell_word(std::string_view text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), means_itself)) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace stepforge
