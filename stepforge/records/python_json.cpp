// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/python_json.h"

#include <algorithm>
#include <array>

namespace stepforge {

namespace {

constexpr std::array<std::string_view, 3> kWords = {"NaN", "Infinity", "-Infinity"};

/// The end of the string that begins at `begin`, or of the text.
size_t end_of_string(std::string_view text, size_t begin) {
  for (size_t at = begin + 1; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return text.size();
}

}  // namespace

std::optional<std::string> with_null_for_nan(std::string_view text) {
  if (text.find("NaN") == std::string_view::npos && text.find("Infinity") == std::string_view::npos)
    return std::nullopt;
  std::string result;
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      at = end_of_string(text, at);
      continue;
    }
    const auto rest = text.substr(at);
    const auto* const word =
        std::ranges::find_if(kWords, [&](std::string_view wanted) { return rest.starts_with(wanted); });
    if (word == kWords.end()) {
      ++at;
      continue;
    }
    result.append(text.substr(copied, at - copied)).append("null");
    at += word->size();
    copied = at;
  }
  if (copied == 0) return std::nullopt;
  return result.append(text.substr(copied));
}

}  // namespace stepforge
