// SPDX-License-Identifier: Apache-2.0
// Cuts a text at the matches of a pattern or at a kind of characters.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "stepforge/text/splitter.h"

namespace stepforge {

/// How a match is treated: as a piece of its own; removed; as one piece with adjacent matches; as a part of the piece
/// before or after it.
enum class CutBehavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };

/// Immutable; may be shared between threads.
class Cut {
 public:
  /// With `invert`, what lies between the matches counts as the match.
  Cut(SplitPattern pattern, CutBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  /// Each character for which `is_match` is true is a match.
  Cut(bool (*is_match)(char32_t), CutBehavior behavior) : is_match_(is_match), behavior_(behavior) {}
  /// Calls a function that returns the pieces.
  using Function = std::function<std::vector<std::string_view>(std::string_view)>;
  explicit Cut(Function function) : function_(std::move(function)) {}

  /// The pattern whose piece_length() gives the same pieces as pieces(), or null.
  const SplitPattern* isolating_pattern() const {
    return pattern_ && behavior_ == CutBehavior::isolated ? &*pattern_ : nullptr;
  }

  /// The pieces of `text` that are kept, none of them empty, in order. `text` must be UTF-8.
  std::vector<std::string_view> pieces(std::string_view text, SplitPattern::Scratch& scratch) const;

 private:
  struct Span {
    size_t begin = 0;
    size_t end = 0;
    bool match = false;
  };

  std::vector<Span> spans(std::string_view text, SplitPattern::Scratch& scratch) const;
  bool joins(const Span& earlier, const Span& later) const;

  std::optional<SplitPattern> pattern_;
  bool (*is_match_)(char32_t) = nullptr;
  Function function_;
  CutBehavior behavior_ = CutBehavior::isolated;
  bool invert_ = false;
};

}  // namespace stepforge
