// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/merge_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr int32_t kInside = -1;
constexpr int32_t kEndOfWord = std::numeric_limits<int32_t>::min();
constexpr size_t kMaxWordBytes = std::numeric_limits<int32_t>::max();

}  // namespace

MergeTable::MergeTable(const WordCounts& counts, const std::array<int32_t, 256>& byte_ids) {
  for (const auto& [text, count] : counts) {
    if (text.size() < 2) continue;
    if (text.size() > kMaxWordBytes || words_.size() == std::numeric_limits<uint32_t>::max()) {
      throw Error(format("cannot train on a word of {} bytes or on more than {} words", text.size(),
                         std::numeric_limits<uint32_t>::max()));
    }
    words_.push_back({symbols_.size(), count});
    for (const char byte : text) symbols_.push_back(byte_ids[static_cast<uint8_t>(byte)]);
    symbols_.push_back(kEndOfWord);
  }
  lengths_.assign(static_cast<size_t>(*std::max_element(byte_ids.begin(), byte_ids.end())) + 1, 1);
  for (uint32_t index = 0; index < words_.size(); ++index) {
    const Word& word = words_[index];
    const int32_t* symbols = symbols_.data() + word.begin;
    for (uint32_t at = 0; symbols[at + 1] != kEndOfWord; ++at)
      gain(token_pair(symbols[at], symbols[at + 1]), {index, at}, word.count);
  }
  offer_gained();
}

MergeTable::Best MergeTable::pop_best() {
  while (!queue_.empty()) {
    Candidate top = queue_.top();
    queue_.pop();
    const int64_t count = pairs_.find(top.pair)->count;
    if (count == top.count) return {top.pair, count};
    // Merges of other pairs have changed the count.
    top.count = count;
    if (count > 0) queue_.push(top);
  }
  return {};
}

void MergeTable::merge(TokenPair pair, int32_t id) {
  if (static_cast<size_t>(id) >= lengths_.size()) lengths_.resize(static_cast<size_t>(id) + 1);
  lengths_[static_cast<size_t>(id)] = length_of(left_token(pair)) + length_of(right_token(pair));
  std::vector<Place> places = std::exchange(pairs_[pair].places, {});
  // Only a pair that was offered more than once has them out of order.
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  for (const Place place : places) merge_at(place, pair, id);
  offer_gained();
}

void MergeTable::merge_at(Place place, TokenPair pair, int32_t id) {
  const Word& word = words_[place.word];
  int32_t* symbols = symbols_.data() + word.begin;
  const uint32_t middle = place.at + length_of(left_token(pair));
  if (symbols[place.at] != left_token(pair) || symbols[middle] != right_token(pair)) return;
  const uint32_t end = middle + length_of(right_token(pair));
  symbols[place.at] = id;
  symbols[middle] = kInside;
  symbols[end - 1] = -static_cast<int32_t>(end - place.at);
  if (place.at > 0) {
    const int32_t last = symbols[place.at - 1];
    const uint32_t before = last >= 0 ? place.at - 1 : place.at - static_cast<uint32_t>(-last);
    lose(symbols[before], left_token(pair), word.count);
    gain(token_pair(symbols[before], id), {place.word, before}, word.count);
  }
  if (const int32_t after = symbols[end]; after != kEndOfWord) {
    lose(right_token(pair), after, word.count);
    gain(token_pair(id, after), place, word.count);
  }
}

void MergeTable::gain(TokenPair pair, Place place, int64_t count) {
  Pair& record = pairs_[pair];
  if (!std::exchange(record.gained, true)) gained_.push_back(pair);
  record.count += count;
  record.places.push_back(place);
}

void MergeTable::lose(int32_t left, int32_t right, int64_t count) {
  pairs_[token_pair(left, right)].count -= count;
}

/// Each pair that gained enters the queue once, with its full count.
void MergeTable::offer_gained() {
  for (const TokenPair pair : gained_) {
    Pair& record = pairs_[pair];
    record.gained = false;
    if (record.count > 0) queue_.push({record.count, pair});
  }
  gained_.clear();
}

}  // namespace stepforge
