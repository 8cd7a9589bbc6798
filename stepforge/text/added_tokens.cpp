// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/added_tokens.h"

#include <algorithm>
#include <utility>

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

AddedTokenFinder::AddedTokenFinder(const std::vector<const AddedToken*>& tokens) : tokens_(tokens) {
  std::vector<std::pair<std::string_view, int32_t>> pieces;
  // The tree keeps the last of equal pieces, but the first of equal tokens counts.
  for (size_t i = tokens.size(); i-- > 0;) {
    pieces.emplace_back(tokens[i]->pattern, static_cast<int32_t>(i));
    bool& begins = begins_[static_cast<uint8_t>(tokens[i]->pattern.front())];
    if (!begins) first_bytes_ += tokens[i]->pattern.front();
    begins = true;
  }
  patterns_ = PieceTrie(std::move(pieces));
  states_.resize(patterns_.size());
  for (uint32_t parent = 0; parent < patterns_.size(); ++parent) {
    const uint32_t first = patterns_.first_child(parent);
    for (uint32_t node = first; node < first + patterns_.children(parent); ++node) {
      State& state = states_[node];
      state.length = states_[parent].length + 1;
      state.shorter = parent == 0 ? 0 : next_state(states_[parent].shorter, patterns_.label(node));
      state.pattern = patterns_.id(node) >= 0 ? node : states_[state.shorter].pattern;
    }
  }
}

uint32_t AddedTokenFinder::next_state(uint32_t state, uint8_t byte) const {
  while (true) {
    const uint32_t next = patterns_.child_of(state, byte);
    if (next != 0 || state == 0) return next;
    state = states_[state].shorter;
  }
}

/// Where the next byte is that a pattern begins with, or the end.
size_t AddedTokenFinder::find_begin(std::string_view text, size_t from) const {
  if (first_bytes_.empty()) return text.size();
  if (first_bytes_.size() == 1) return std::min(text.find(first_bytes_.front(), from), text.size());
  while (from < text.size() && !begins_[static_cast<uint8_t>(text[from])]) ++from;
  return from;
}

/// The state is the longest beginning of patterns that ends here. As long as it begins no later than the best match, a
/// match further left or a longer one may follow.
std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text, size_t from) const {
  std::optional<Match> best;
  uint32_t state = 0;
  for (size_t i = from; i < text.size(); ++i) {
    if (state == 0) {
      i = find_begin(text, i);
      if (i == text.size()) break;
    }
    state = next_state(state, static_cast<uint8_t>(text[i]));
    const auto begin_of = [&](uint32_t node) { return i + 1 - states_[node].length; };
    if (best && begin_of(state) > best->begin) return best;
    if (const uint32_t whole = states_[state].pattern;
        whole != 0 && (!best || begin_of(whole) <= best->begin))
      best = Match{begin_of(whole), tokens_[static_cast<size_t>(patterns_.id(whole))]};
  }
  return best;
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
