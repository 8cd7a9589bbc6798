// SPDX-License-Identifier: Apache-2.0
// The words that a BPE is trained on, as tokens: the count and the places of each pair of tokens.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <queue>
#include <vector>

#include "stepforge/text/pair_map.h"
#include "stepforge/text/word_counts.h"

namespace stepforge {

/// Merging a pair takes time in proportion to its occurrences, however long the words are.
class MergeTable {
 public:
  /// `byte_ids`: the tokens of the 256 bytes. Throws Error for more than 2^32 distinct words or bytes in a word.
  MergeTable(const WordCounts& counts, const std::array<int32_t, 256>& byte_ids);

  struct Best {
    TokenPair pair = 0;
    int64_t count = 0;
  };

  /// Removes the most frequent pair, the smallest of equally frequent ones, from the queue and returns it; count 0 if none
  /// is left. A pair that occurs again later, because two pairs make the same token, returns to the queue with the count
  /// it had plus that of the new places, as in Hugging Face's trainer.
  Best pop_best();

  /// Replaces `pair` by the token `id` everywhere, in each word from left to right.
  void merge(TokenPair pair, int32_t id);

 private:
  /// Where a pair begins, in bytes from the beginning of its word.
  struct Place {
    uint32_t word = 0;
    uint32_t at = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Word {
    size_t begin = 0;  ///< in symbols_
    int64_t count = 0;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<Place> places;  ///< also those that other merges have taken since
    bool gained = false;        ///< since the last merge
  };
  struct Candidate {
    int64_t count = 0;
    TokenPair pair = 0;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void gain(TokenPair pair, Place place, int64_t count);
  void lose(int32_t left, int32_t right, int64_t count);
  void offer_gained();
  void merge_at(Place place, TokenPair pair, int32_t id);
  uint32_t length_of(int32_t token) const { return lengths_[static_cast<size_t>(token)]; }

  /// One entry for each byte of a word and one for its end. A token's first byte holds its id; its last byte, if it has
  /// several, holds its negative length.
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::vector<uint32_t> lengths_;  ///< of tokens, in bytes
  PairMap<Pair> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<TokenPair> gained_;
};

}  // namespace stepforge
