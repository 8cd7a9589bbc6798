// SPDX-License-Identifier: Apache-2.0
// Pre-tokenization: splits text into the words to which byte-level BPE is applied one by one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/text/known_patterns.h"
#include "stepforge/text/piece_blocks.h"

namespace stepforge {

/// A compiled pattern; immutable, may be shared between threads.
class SplitPattern {
 public:
  /// `pattern` in Oniguruma's language (see pattern_rewriter.h). With `use_scanner` the pieces of a known pattern
  /// (known_patterns.h) are found without the regular expression. Throws FormatError naming `source` if it is
  /// not supported, does not compile or can match the empty string.
  SplitPattern(std::string_view pattern, const std::string& source, bool use_scanner = true);
  /// For find(): a pattern in PCRE2's own language, where ^ and $ match at every line. It may match the empty string.
  static SplitPattern search(std::string_view pattern, const std::string& source);

  /// One thread's working memory for matching; usable with every pattern.
  class Scratch {
   public:
    Scratch();

   private:
    friend class SplitPattern;
    struct State;
    std::shared_ptr<State> state_;
  };

  /// A match, as offsets in bytes.
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// The first match that begins at byte `from` or later. `text` must be valid UTF-8 with a character boundary at
  /// `from`. Throws Error if the match takes more steps than any reasonable pattern needs.
  std::optional<Match> find(std::string_view text, size_t from, Scratch& scratch) const;

  /// Length of the first piece of `text` from `position` on: a match, or the text before the next match.
  /// `text` must be valid UTF-8 with a character at `position`. Throws what find() throws.
  size_t piece_length(std::string_view text, size_t position, Scratch& scratch) const;

  /// Calls `pieces` with a rest of `text` and the ends of the first pieces of it, until all of it is in pieces; those of a
  /// known pattern are found many at a time. Throws what find() throws.
  template <typename Pieces>
  void for_each_pieces(std::string_view text, Scratch& scratch, const Pieces& pieces) const {
    PieceEnds ends;
    for (size_t begin = 0; begin < text.size(); begin += ends.all().back()) {
      next_ends(text, begin, scratch, ends);
      pieces(text.substr(begin), ends.all());
    }
  }

 private:
  SplitPattern(std::string source, std::shared_ptr<const void> code)
      : source_(std::move(source)), code_(std::move(code)) {}

  /// The ends of some pieces of `text` from `position` on, counted from there; at least one.
  void next_ends(std::string_view text, size_t position, Scratch& scratch, PieceEnds& ends) const;

  std::string source_;
  std::shared_ptr<const void> code_;
  PieceScanner scanner_ = nullptr;        ///< null: pieces are found by the regular expression
  BlockScanner block_scanner_ = nullptr;  ///< as scanner_
};

}  // namespace stepforge
