// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_merges.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
// Up to this length, looking at all pairs for each merge is faster than a heap.
constexpr size_t kShortWord = 48;
constexpr size_t kMaxSymbols = std::numeric_limits<int32_t>::max();

}  // namespace

BpeMerges::BpeMerges(const std::vector<TokenPair>& merges, const std::vector<int32_t>& merged_ids,
                     size_t round_merges)
    : round_merges_(round_merges), merges_(merges.size()) {
  for (size_t rank = 0; rank < merges.size(); ++rank)
    merges_[merges[rank]] = {static_cast<int32_t>(rank), merged_ids[rank]};
}

void BpeMerges::apply(std::vector<int32_t>& symbols, size_t begin) const {
  if (merges_.size() == 0) return;
  if (symbols.size() - begin <= kShortWord) {
    merge_short(symbols, begin);
  } else {
    merge_long(symbols, begin);
  }
}

void BpeMerges::merge_short(std::vector<int32_t>& symbols, size_t begin) const {
  size_t count = symbols.size() - begin;
  int32_t* symbol = symbols.data() + begin;
  std::array<Merge, kShortWord> pairs;
  const auto look_up = [&](size_t i) {
    const Merge* merge = i + 1 < count ? merges_.find(token_pair(symbol[i], symbol[i + 1])) : nullptr;
    return merge != nullptr ? *merge : Merge{kNoRank, 0};
  };
  for (size_t i = 0; i < count; ++i) pairs[i] = look_up(i);
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (count < 2 || pairs[best].rank == kNoRank) break;
    symbol[best] = pairs[best].id;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbol[i] = symbol[i + 1];
      pairs[i] = pairs[i + 1];
    }
    pairs[best] = look_up(best);
    if (best > 0) pairs[best - 1] = look_up(best - 1);
  }
  symbols.resize(begin + count);
}

/// The symbols of a word, one slot each before merging. A merged symbol is in its first slot; its second and last slots
/// hold the negative length, so that neighbours are found from both sides without more memory.
class BpeMerges::Symbols {
 public:
  Symbols(int32_t* slots, uint32_t count) : slots_(slots), count_(count) {}

  uint32_t count() const { return count_; }
  int32_t operator[](uint32_t i) const { return slots_[i]; }
  /// False inside a merged symbol.
  bool begins_at(uint32_t i) const { return slots_[i] >= 0; }
  /// Where the next symbol begins; count() after the last.
  uint32_t next(uint32_t i) const { return i + length(i); }
  /// Where the symbol before `i` begins. `i` is not 0.
  uint32_t previous(uint32_t i) const { return slots_[i - 1] >= 0 ? i - 1 : i - stored_length(i - 1); }
  /// The symbol at `i` and the next one become `id`.
  void merge(uint32_t i, int32_t id) {
    const uint32_t right = next(i);
    const uint32_t total = length(i) + length(right);
    slots_[i] = id;
    slots_[right] = -1;
    slots_[i + 1] = slots_[i + total - 1] = -static_cast<int32_t>(total);
  }

 private:
  uint32_t stored_length(uint32_t i) const { return static_cast<uint32_t>(-slots_[i]); }
  uint32_t length(uint32_t i) const { return i + 1 < count_ && slots_[i + 1] < 0 ? stored_length(i + 1) : 1; }

  int32_t* slots_;
  uint32_t count_;
};

/// Applies the merges to one long word, by rank and from left to right. A huge word takes several rounds,
/// each with the first of the possible merges, so that the heap stays smaller than the word; the order of
/// merges is that of a single round.
class BpeMerges::LongWord {
 public:
  LongWord(const PairMap<Merge>& merges, Symbols symbols, size_t max_candidates)
      : merges_(merges), symbols_(symbols), max_candidates_(max_candidates) {}

  void merge() {
    do {
      find_candidates();
      merge_candidates();
    } while (bound_ != kEnd);
  }

 private:
  using Candidate = std::pair<int32_t, uint32_t>;  // rank and index
  static constexpr Candidate kEnd = {kNoRank, 0};

  /// The merge of the symbol at `i` with the next one, or null.
  const Merge* merge_at(uint32_t i) const {
    const uint32_t right = symbols_.next(i);
    return right < symbols_.count() ? merges_.find(token_pair(symbols_[i], symbols_[right])) : nullptr;
  }

  /// Adds the merge at `i` to a heap with the order `compare`, if there is one below the bound. Returns
  /// whether it did.
  template <typename Compare>
  bool add(uint32_t i, const Compare& compare) {
    const Merge* merge = merge_at(i);
    if (merge == nullptr || Candidate(merge->rank, i) >= bound_) return false;
    heap_.emplace_back(merge->rank, i);
    std::push_heap(heap_.begin(), heap_.end(), compare);
    return true;
  }

  template <typename Compare>
  Candidate pop(const Compare& compare) {
    std::pop_heap(heap_.begin(), heap_.end(), compare);
    const Candidate first = heap_.back();
    heap_.pop_back();
    return first;
  }

  /// Collects the lowest candidates, with the highest of them first; lowers the bound to what does not fit.
  void find_candidates() {
    bound_ = kEnd;
    for (uint32_t i = 0; i < symbols_.count(); i = symbols_.next(i)) {
      if (add(i, std::less<>()) && heap_.size() > max_candidates_) bound_ = pop(std::less<>());
    }
  }

  void merge_candidates() {
    const std::greater<> lowest_first;
    std::make_heap(heap_.begin(), heap_.end(), lowest_first);
    while (!heap_.empty()) {
      const auto [rank, i] = pop(lowest_first);
      const Merge* merge = symbols_.begins_at(i) ? merge_at(i) : nullptr;
      if (merge == nullptr || merge->rank != rank) continue;  // a neighbour was merged meanwhile
      symbols_.merge(i, merge->id);
      add(i, lowest_first);
      if (i > 0) add(symbols_.previous(i), lowest_first);
    }
  }

  const PairMap<Merge>& merges_;
  Symbols symbols_;
  size_t max_candidates_;
  std::vector<Candidate> heap_;
  Candidate bound_ = kEnd;  ///< the heap has all candidates below it
};

void BpeMerges::merge_long(std::vector<int32_t>& symbols, size_t begin) const {
  const size_t count = symbols.size() - begin;
  if (count > kMaxSymbols) {
    throw Error(format("a word of {} symbols is too long; split the text into lines", count));
  }
  const Symbols word(symbols.data() + begin, static_cast<uint32_t>(count));
  LongWord(merges_, word, std::max(round_merges_, count / 8)).merge();
  size_t kept = begin;
  for (uint32_t i = 0; i < word.count();) {
    const uint32_t next = word.next(i);
    symbols[kept++] = word[i];
    i = next;
  }
  symbols.resize(kept);
}

}  // namespace stepforge
