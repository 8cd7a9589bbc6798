// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/text/byte_alphabet.h"

namespace stepforge {

namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
// Up to this length, looking at all pairs for each merge is faster than a heap.
constexpr size_t kShortWord = 48;
constexpr size_t kLongestWord = std::numeric_limits<int32_t>::max();

}  // namespace

BpeModel::BpeModel(const TokenizerDefinition& definition, size_t round_merges)
    : round_merges_(round_merges), merges_(definition.merges.size()) {
  token_bytes_.reserve(definition.pieces.size());
  for (const std::string& piece : definition.pieces) {
    const std::optional<std::string> bytes = from_byte_alphabet(piece);
    // A piece outside the byte alphabet can never result from merges; Hugging Face decodes it as it is
    // spelled.
    token_bytes_.push_back(bytes.value_or(piece));
    const auto id = static_cast<int32_t>(token_bytes_.size() - 1);
    if (bytes && bytes->size() == 1) byte_ids_[static_cast<uint8_t>(bytes->front())] = id;
  }
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    merges_[definition.merges[rank]] = {static_cast<int32_t>(rank), definition.merged_ids[rank]};
  }
  if (!definition.ignore_merges) return;
  for (size_t id = 0; id < token_bytes_.size(); ++id) {
    if (from_byte_alphabet(definition.pieces[id]))
      whole_words_.emplace(token_bytes_[id], static_cast<int32_t>(id));
  }
}

void BpeModel::append_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (!whole_words_.empty()) {
    if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  const size_t begin = ids.size();
  ids.resize(begin + word.size());
  for (size_t i = 0; i < word.size(); ++i) ids[begin + i] = byte_ids_[static_cast<uint8_t>(word[i])];
  if (merges_.size() == 0) return;
  if (word.size() <= kShortWord) {
    merge_short(ids, begin);
  } else {
    merge_long(ids, begin);
  }
}

void BpeModel::merge_short(std::vector<int32_t>& symbols, size_t begin) const {
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

namespace {

/// Symbols with gaps. A merged symbol stands at the first of its places; the second and the last of them hold minus
/// their number, so that neighbours are found from both sides without further memory.
class Symbols {
 public:
  Symbols(int32_t* places, uint32_t count) : places_(places), count_(count) {}

  uint32_t count() const { return count_; }
  int32_t operator[](uint32_t i) const { return places_[i]; }
  /// False inside a merged symbol.
  bool begins_at(uint32_t i) const { return places_[i] >= 0; }
  /// Where the next symbol begins; count() after the last.
  uint32_t next(uint32_t i) const { return i + length(i); }
  /// Where the symbol before `i` begins. `i` is not 0.
  uint32_t previous(uint32_t i) const { return places_[i - 1] >= 0 ? i - 1 : i - tag(i - 1); }
  /// The symbol at `i` and the next one become `id`.
  void merge(uint32_t i, int32_t id) {
    const uint32_t right = next(i);
    const uint32_t total = length(i) + length(right);
    places_[i] = id;
    places_[right] = -1;
    places_[i + 1] = places_[i + total - 1] = -static_cast<int32_t>(total);
  }

 private:
  uint32_t tag(uint32_t i) const { return static_cast<uint32_t>(-places_[i]); }
  uint32_t length(uint32_t i) const { return i + 1 < count_ && places_[i + 1] < 0 ? tag(i + 1) : 1; }

  int32_t* places_;
  uint32_t count_;
};

}  // namespace

void BpeModel::merge_long(std::vector<int32_t>& symbols, size_t begin) const {
  if (symbols.size() - begin > kLongestWord) {
    throw Error(format("a word of {} bytes is too long; split the text into lines", symbols.size() - begin));
  }
  Symbols word(symbols.data() + begin, static_cast<uint32_t>(symbols.size() - begin));
  const auto look_up = [&](uint32_t i) -> const Merge* {
    const uint32_t right = word.next(i);
    return right < word.count() ? merges_.find(token_pair(word[i], word[right])) : nullptr;
  };
  // Possible merges, ordered by rank, then by place. A huge word takes several rounds, each with the lowest of
  // them, so that the heap stays smaller than the word; the order of merges is that of a single round.
  using Candidate = std::pair<int32_t, uint32_t>;
  constexpr Candidate end = {kNoRank, 0};
  const size_t most = std::max<size_t>(round_merges_, word.count() / 8);
  std::vector<Candidate> heap;
  Candidate bound = end;  // the heap has all candidates below it
  do {
    bound = end;
    heap.clear();
    for (uint32_t i = 0; i < word.count(); i = word.next(i)) {
      const Merge* merge = look_up(i);
      if (merge == nullptr || Candidate(merge->rank, i) >= bound) continue;
      heap.emplace_back(merge->rank, i);
      std::push_heap(heap.begin(), heap.end());
      if (heap.size() <= most) continue;
      std::pop_heap(heap.begin(), heap.end());
      bound = heap.back();
      heap.pop_back();
    }
    const auto lowest_first = std::greater<>();
    const auto offer = [&](uint32_t i) {
      const Merge* merge = look_up(i);
      if (merge == nullptr || Candidate(merge->rank, i) >= bound) return;
      heap.emplace_back(merge->rank, i);
      std::push_heap(heap.begin(), heap.end(), lowest_first);
    };
    std::make_heap(heap.begin(), heap.end(), lowest_first);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), lowest_first);
      const auto [rank, i] = heap.back();
      heap.pop_back();
      const Merge* merge = word.begins_at(i) ? look_up(i) : nullptr;
      if (merge == nullptr || merge->rank != rank) continue;  // a neighbour was merged meanwhile
      word.merge(i, merge->id);
      offer(i);
      if (i > 0) offer(word.previous(i));
    }
  } while (bound != end);
  size_t kept = begin;
  for (uint32_t i = 0; i < word.count();) {
    const uint32_t after = word.next(i);
    symbols[kept++] = word[i];
    i = after;
  }
  symbols.resize(kept);
}

}  // namespace stepforge
