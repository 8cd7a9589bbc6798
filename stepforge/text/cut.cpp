// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/cut.h"

#include "stepforge/base/utf8.h"

namespace stepforge {

/// Matches and the text between them, covering `text`.
std::vector<Cut::Span> Cut::spans(std::string_view text, SplitPattern::Scratch& scratch) const {
  std::vector<Span> spans;
  size_t done = 0;
  const auto add_match = [&](size_t begin, size_t end) {
    if (begin > done) spans.push_back({done, begin, invert_});
    spans.push_back({begin, end, !invert_});
    done = end;
  };
  if (pattern_) {
    while (done < text.size()) {
      const auto match = pattern_->find(text, done, scratch);
      if (!match) break;
      add_match(match->begin, match->end);
    }
  } else {
    for (size_t at = 0; at < text.size();) {
      const size_t length = utf8_sequence_length(text.substr(at));
      if (is_match_(decode_code_point(text.substr(at)))) add_match(at, at + length);
      at += length;
    }
  }
  if (done < text.size()) spans.push_back({done, text.size(), invert_});
  return spans;
}

/// Whether two neighbours become one piece. Of adjacent matches only one joins the text beside them.
bool Cut::joins(const Span& earlier, const Span& later) const {
  switch (behavior_) {
    case CutBehavior::contiguous:
      return earlier.match == later.match;
    case CutBehavior::merged_with_previous:
      return !earlier.match && later.match;
    case CutBehavior::merged_with_next:
      return earlier.match && !later.match;
    case CutBehavior::isolated:
    case CutBehavior::removed:
      return false;
  }
  return false;
}

std::vector<std::string_view> Cut::pieces(std::string_view text, SplitPattern::Scratch& scratch) const {
  if (function_) return function_(text);
  std::vector<std::string_view> pieces;
  const std::vector<Span> all = spans(text, scratch);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].match && behavior_ == CutBehavior::removed) continue;
    const size_t begin = all[i].begin;
    while (i + 1 < all.size() && joins(all[i], all[i + 1])) ++i;
    pieces.push_back(text.substr(begin, all[i].end - begin));
  }
  return pieces;
}

}  // namespace stepforge
