// SPDX-License-Identifier: Apache-2.0
// The merges of byte-level BPE, applied to one word at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stepforge/text/definition.h"
#include "stepforge/text/pair_map.h"

namespace stepforge {

/// Immutable; may be shared between threads.
class BpeModel {
 public:
  /// A long word is merged in rounds of at most `round_merges` possible merges, or an eighth of its bytes.
  explicit BpeModel(const TokenizerDefinition& definition, size_t round_merges = 1 << 16);

  /// The bytes of every token of the model's vocabulary, by id.
  const std::vector<std::string>& token_bytes() const { return token_bytes_; }

  /// Appends the ids of one word: from single bytes on, the merge of lowest rank is applied, the leftmost
  /// first, until none fits. Time O(n log n) and memory of a few bytes per byte of the word.
  void append_word(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;
  };

  class LongWord;

  void merge_short(std::vector<int32_t>& symbols, size_t begin) const;
  void merge_long(std::vector<int32_t>& symbols, size_t begin) const;

  size_t round_merges_;
  std::vector<std::string> token_bytes_;
  std::array<int32_t, 256> byte_ids_{};
  PairMap<Merge> merges_;
  /// Words that are tokens as a whole; empty unless the definition sets ignore_merges.
  std::unordered_map<std::string_view, int32_t> whole_words_;
};

}  // namespace stepforge
