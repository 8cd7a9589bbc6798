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
  explicit BpeModel(const TokenizerDefinition& definition);

  /// The bytes of every token of the model's vocabulary, by id.
  const std::vector<std::string>& token_bytes() const { return token_bytes_; }

  /// Appends the ids of one word. Starting from single bytes, the merge of lowest rank is applied, the
  /// leftmost first, until none is possible. O(n log n) in the length of the word.
  void append_word(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;
  };

  void merge_short(std::vector<int32_t>& symbols, size_t begin) const;
  void merge_long(std::vector<int32_t>& symbols, size_t begin) const;

  std::vector<std::string> token_bytes_;
  std::array<int32_t, 256> byte_ids_{};
  PairMap<Merge> merges_;
  /// Words that are tokens as a whole; empty unless the definition sets ignore_merges.
  std::unordered_map<std::string_view, int32_t> whole_words_;
};

}  // namespace stepforge
