// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/replace.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

size_t max_replaced(size_t bytes) {
  // The longest compatibility form has 11 times the bytes of its character.
  constexpr size_t kGrowth = 64;
  return (size_t{1} << 20) + kGrowth * bytes;
}

std::string replace_matches(std::string_view text, const SplitPattern& pattern, std::string_view content,
                            SplitPattern::Scratch& scratch, size_t limit) {
  std::string result;
  size_t begin = 0;
  while (begin < text.size()) {
    const auto match = pattern.find(text, begin, scratch);
    if (!match) break;
    result += text.substr(begin, match->begin - begin);
    result += content;
    begin = match->end;
    if (result.size() > limit) {
      throw Error(
          format("replacing in a text of {} bytes made more than {} bytes of it; does this tokenizer.json "
                 "repeat a replacement?",
                 text.size(), limit));
    }
  }
  return result += text.substr(begin);
}

std::string replace_text(std::string_view text, std::string_view old, std::string_view content) {
  std::string result;
  for (size_t at = text.find(old); at != std::string_view::npos; at = text.find(old)) {
    result += text.substr(0, at);
    result += content;
    text.remove_prefix(at + old.size());
  }
  return result += text;
}

}  // namespace stepforge
