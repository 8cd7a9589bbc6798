// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/added_tokens.h"

#include <algorithm>
#include <functional>

#include "stepforge/base/utf8.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

namespace {

/// Where the character before byte `end` begins. `end` is not 0.
size_t character_before(std::string_view text, size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool touches_a_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word_character(decode_code_point(text.substr(character_before(text, begin)))))
    return true;
  return end < text.size() && is_word_character(decode_code_point(text.substr(end)));
}

/// Where the white space before `begin` begins, but not before `limit`.
size_t white_space_begin(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const size_t before = character_before(text, begin);
    if (!is_white_space(decode_code_point(text.substr(before)))) break;
    begin = before;
  }
  return begin;
}

size_t white_space_end(std::string_view text, size_t end) {
  while (end < text.size() && is_white_space(decode_code_point(text.substr(end))))
    end += utf8_sequence_length(text.substr(end));
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<const AddedToken*>& tokens) {
  for (const AddedToken* token : tokens) {
    by_pattern_.emplace(token->pattern, token);
    lengths_[static_cast<uint8_t>(token->pattern.front())].push_back(token->pattern.size());
  }
  for (std::vector<size_t>& lengths : lengths_) {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  }
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text, size_t from) const {
  if (by_pattern_.empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    for (const size_t length : lengths_[static_cast<uint8_t>(text[begin])]) {
      if (length > text.size() - begin) continue;
      const auto token = by_pattern_.find(text.substr(begin, length));
      if (token != by_pattern_.end()) return Match{begin, token->second};
    }
  }
  return std::nullopt;
}

std::optional<AddedTokenFinder::Found> AddedTokenFinder::Search::next() {
  while (const auto match = finder_.find(text_, from_)) {
    Found found{match->begin, match->begin + match->token->pattern.size(), match->token};
    from_ = found.end;
    if (found.begin < done_) continue;  // inside white space that belongs to the token before
    if (found.token->single_word && touches_a_word(text_, found.begin, found.end)) continue;
    if (found.token->lstrip) found.begin = white_space_begin(text_, found.begin, done_);
    if (found.token->rstrip) found.end = white_space_end(text_, found.end);
    done_ = found.end;
    return found;
  }
  return std::nullopt;
}

}  // namespace stepforge
