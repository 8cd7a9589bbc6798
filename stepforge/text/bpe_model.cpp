// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_model.h"

#include <limits>
#include <queue>
#include <tuple>

#include "stepforge/text/byte_alphabet.h"

namespace stepforge {

namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
// Up to this length, looking at all pairs for each merge is faster than a heap.
constexpr size_t kShortWord = 48;

}  // namespace

BpeModel::BpeModel(const TokenizerDefinition& definition) : merges_(definition.merges.size()) {
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
  for (const char byte : word) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
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

void BpeModel::merge_long(std::vector<int32_t>& symbols, size_t begin) const {
  // A doubly linked list over the symbols; -1 marks a symbol that was merged into the one before.
  const auto count = static_cast<int64_t>(symbols.size() - begin);
  int32_t* symbol = symbols.data() + begin;
  std::vector<int64_t> next(static_cast<size_t>(count));
  std::vector<int64_t> previous(static_cast<size_t>(count));
  // (rank, position), lowest first. An entry is stale if the pair at its position has another rank now.
  using Candidate = std::pair<int32_t, int64_t>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto look_up = [&](int64_t i) -> const Merge* {
    const int64_t right = next[static_cast<size_t>(i)];
    if (symbol[i] < 0 || right >= count) return nullptr;
    return merges_.find(token_pair(symbol[i], symbol[right]));
  };
  const auto offer = [&](int64_t i) {
    if (const Merge* merge = look_up(i)) candidates.emplace(merge->rank, i);
  };
  for (int64_t i = 0; i < count; ++i) {
    next[static_cast<size_t>(i)] = i + 1;
    previous[static_cast<size_t>(i)] = i - 1;
  }
  for (int64_t i = 0; i < count; ++i) offer(i);
  while (!candidates.empty()) {
    const auto [rank, i] = candidates.top();
    candidates.pop();
    const Merge* merge = look_up(i);
    if (merge == nullptr || merge->rank != rank) continue;
    const int64_t gone = next[static_cast<size_t>(i)];
    const int64_t after = next[static_cast<size_t>(gone)];
    symbol[i] = merge->id;
    symbol[gone] = -1;
    next[static_cast<size_t>(i)] = after;
    if (after < count) previous[static_cast<size_t>(after)] = i;
    offer(i);
    if (previous[static_cast<size_t>(i)] >= 0) offer(previous[static_cast<size_t>(i)]);
  }
  size_t kept = begin;
  for (int64_t i = 0; i < count; ++i) {
    if (symbol[i] >= 0) symbols[kept++] = symbol[i];
  }
  symbols.resize(kept);
}

}  // namespace stepforge
