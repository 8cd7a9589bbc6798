// SPDX-License-Identifier: Apache-2.0
// The merges of byte-pair encoding, applied to the symbols of one word.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/text/pair_map.h"

namespace stepforge {

/// Immutable; may be shared between threads.
class BpeMerges {
 public:
  static constexpr size_t kRound = 1 << 16;

  /// merged_ids[rank] is the token that merges[rank] makes. A long word is merged in rounds of at most `round_merges` possible
  /// merges, or an eighth of its symbols.
  BpeMerges(const std::vector<TokenPair>& merges, const std::vector<int32_t>& merged_ids,
            size_t round_merges = kRound);

  /// Merges the symbols from `begin` on: the merge of lowest rank is applied, the leftmost first, until none fits.
  /// Time O(n log n) and memory of a few bytes per symbol.
  void apply(std::vector<int32_t>& symbols, size_t begin) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;
  };

  class Symbols;
  class LongWord;

  void merge_short(std::vector<int32_t>& symbols, size_t begin) const;
  void merge_long(std::vector<int32_t>& symbols, size_t begin) const;

  size_t round_merges_;
  PairMap<Merge> merges_;
};

}  // namespace stepforge
