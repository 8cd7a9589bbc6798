// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/word_cache.h"

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/format.h"
#include "tests/support/allocation_meter.h"

namespace stepforge::testing {
namespace {

using CachedIds = std::vector<int32_t>;

/// `word` with nothing to be read after it, or amid other text.
std::optional<CachedIds> look_up(WordCache& cache, const std::string& word, const std::string& after = {}) {
  const std::string memory = word + after;
  const std::string_view view = std::string_view(memory).substr(0, word.size());
  CachedIds ids;
  IdBuffer buffer(ids);
  if (!cache.append(view, cache.place_of(view, memory.data() + memory.size()), buffer)) return std::nullopt;
  buffer.flush();
  return ids;
}

CachedIds some_ids(size_t count) {
  CachedIds ids(count);
  std::iota(ids.begin(), ids.end(), static_cast<int32_t>(count) * 100);
  return ids;
}

TEST(WordCache, ReturnsTheIdsOfWordsOfEveryLengthThatItKeeps) {
  for (size_t length = 1; length <= 100; ++length) {
    WordCache cache;
    for (size_t count = 0; count <= 30; ++count) {
      std::string word(length, 'x');
      word.back() = static_cast<char>('A' + count);
      EXPECT_EQ(look_up(cache, word), std::nullopt);
      cache.insert(word, some_ids(count));
      const bool is_kept = (length <= 15 && count <= 4) || (length <= 95 && count <= 24);
      const auto expected = is_kept ? std::optional(some_ids(count)) : std::nullopt;
      EXPECT_EQ(look_up(cache, word), expected) << length << " bytes, " << count << " ids";
      EXPECT_EQ(look_up(cache, word, "more text, which does not belong to the word"), expected);
    }
  }
}

TEST(WordCache, WordsThatBeginAlikeDiffer) {
  WordCache cache;
  std::string word;
  for (int i = 1; i <= 95; ++i) {
    word += i % 3 == 0 ? '\0' : 'a';
    cache.insert(word, CachedIds{i});
  }
  int found = 0;
  for (; !word.empty(); word.pop_back()) {
    const auto ids = look_up(cache, word);  // nothing if others pushed it out
    if (!ids) continue;
    EXPECT_EQ(*ids, CachedIds{static_cast<int32_t>(word.size())});
    ++found;
  }
  EXPECT_GT(found, 50);
}

TEST(WordCache, RepeatedWordsStayWhileOthersPassThrough) {
  WordCache cache;
  const auto repeated = [](int i) { return format("word {}", i); };
  for (int i = 1; i <= 1'000'000; ++i) cache.insert(format("{}", -i), CachedIds{i});  // it is full
  int forgotten = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    if (i % 10 == 0) {
      const int at = i / 10 % 100;
      const auto found = look_up(cache, repeated(at));
      if (found) {
        EXPECT_EQ(*found, CachedIds{at});
      } else {
        ++forgotten;
        cache.insert(repeated(at), CachedIds{at});
      }
    }
    cache.insert(format("{}", i), CachedIds{i});
  }
  EXPECT_LT(forgotten, 300);  // of 100,000 look-ups, the first of each word among them
}

TEST(WordCache, MemoryIsBounded) {
  const AllocationMeter meter;
  WordCache cache;
  for (int i = 0; i < 1'000'000; ++i) {
    cache.insert(format("{}", i), CachedIds{i});
    cache.insert(format("a long word, which has more bytes {}", i), CachedIds{i});
  }
  EXPECT_LT(meter.peak(), size_t{16} << 20);
}

TEST(IdBuffer, GivesAllIdsInOrderHoweverMany) {
  CachedIds ids;
  IdBuffer buffer(ids);
  CachedIds expected;
  for (int32_t i = 0; i < 5000; ++i) {
    const auto count = static_cast<size_t>(i % 4);
    buffer.append(std::array<int32_t, 4>{i, i + 1, i + 2, i + 3}, count);
    for (int32_t k = 0; k < static_cast<int32_t>(count); ++k) expected.push_back(i + k);
    if (i % 1000 == 0) {
      buffer.flush().push_back(-i);
      expected.push_back(-i);
    }
  }
  EXPECT_EQ(buffer.flush(), expected);
}

}  // namespace
}  // namespace stepforge::testing
