// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/context_part.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/data/tokens_ahead.h"

namespace stepforge::testing {
namespace {

/// Three rows of 24 tokens that number all tokens; row 1 has documents.
Batch numbered_rows() {
  Batch batch = empty_batch(24, 3);
  for (int32_t r = 0; r < 3; ++r) {
    Row row;
    row.tokens.resize(25);
    std::iota(row.tokens.begin(), row.tokens.end(), 100 * r);
    if (r == 1) row.document_starts = {5, 13};
    append_row(row, static_cast<uint64_t>(r + 40), batch);
    batch.sources.push_back(static_cast<int32_t>(r));
    batch.source_rows.push_back(10 * r);
  }
  return batch;
}

TEST(ContextPart, HeadAndTailChunksGiveEveryRankTheSameWork) {
  using Ranges = std::vector<TokenRange>;
  EXPECT_EQ(token_ranges({}, 24), (Ranges{{0, 24}}));
  EXPECT_EQ(token_ranges({.index = 0, .degree = 3}, 24), (Ranges{{0, 4}, {20, 4}}));
  EXPECT_EQ(token_ranges({.index = 2, .degree = 3}, 24), (Ranges{{8, 4}, {12, 4}}));
  EXPECT_EQ(token_ranges({.index = 2, .degree = 3, .head_tail = false}, 24), (Ranges{{16, 8}}));
  int64_t first = -1;
  for (int64_t rank = 0; rank < 4; ++rank) {
    int64_t seen = 0;  // by all tokens of the rank, in a row of one document
    for (const TokenRange& range : token_ranges({.index = rank, .degree = 4}, 48))
      for (int64_t i = 0; i < range.size; ++i) seen += range.begin + i + 1;
    if (rank == 0) first = seen;
    EXPECT_EQ(seen, first);
  }
}

TEST(ContextPart, TheTokensOfADocumentAreFoundInEveryPart) {
  const Batch whole = numbered_rows();
  for (const bool head_tail : {true, false}) {
    for (const TokenRange& document :
         {TokenRange{24, 5}, TokenRange{29, 8}, TokenRange{37, 11}, TokenRange{48, 24}}) {
      std::vector<int32_t> found;
      for (int64_t rank = 0; rank < 4; ++rank) {
        const Batch part = take_part(whole, {.index = rank, .degree = 4, .head_tail = head_tail});
        for (const TokenRange& range : held_tokens(part, document))
          for (int64_t i = range.begin; i < range.begin + range.size; ++i)
            found.push_back(part.tokens[static_cast<size_t>(i)]);
      }
      std::ranges::sort(found);
      const auto first = whole.tokens.begin() + document.begin;
      EXPECT_EQ(found, std::vector(first, first + document.size));
    }
  }
}

TEST(ContextPart, PartsHaveEveryTokenOnceWithItsLabelAndPosition) {
  const Batch whole = numbered_rows();
  for (const bool head_tail : {true, false}) {
    std::vector<int32_t> tokens;
    int64_t labels = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      const Batch part = take_part(whole, {rank, 4, head_tail});
      EXPECT_EQ(part.seq_len, 6);
      EXPECT_EQ(part.row_length(), 24);
      EXPECT_EQ(part.cu_seqlens, whole.cu_seqlens);
      EXPECT_EQ(part.row_ids, whole.row_ids);
      EXPECT_EQ(part.sources, whole.sources);
      EXPECT_EQ(part.source_rows, whole.source_rows);
      ASSERT_EQ(part.tokens.size(), 18U);
      for (size_t i = 0; i < part.tokens.size(); ++i) {
        const auto at = std::ranges::find(whole.tokens, part.tokens[i]) - whole.tokens.begin();
        EXPECT_EQ(part.labels[i], whole.labels[static_cast<size_t>(at)]);
        EXPECT_EQ(part.positions[i], whole.positions[static_cast<size_t>(at)]);
      }
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      labels += part.valid_labels;
    }
    EXPECT_EQ(labels, whole.valid_labels);
    const std::vector<int64_t> index = index_in_parts({0, 4, head_tail}, 3, 24);
    for (size_t i = 0; i < index.size(); ++i)
      EXPECT_EQ(tokens.at(static_cast<size_t>(index[i])), whole.tokens[i]) << i;
  }
}

/// Also where a chunk ends: a rank gets the later tokens of others.
TEST(ContextPart, PartsHaveTheTokensAndLabelsFurtherAheadOfWholeRows) {
  Batch whole = numbered_rows();
  add_tokens_ahead(whole, 2);
  for (const bool head_tail : {true, false}) {
    int64_t labels = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      const Batch part = take_part(whole, {rank, 4, head_tail});
      ASSERT_EQ(part.ahead.size(), 2U);
      for (size_t depth = 0; depth < 2; ++depth) {
        for (size_t i = 0; i < part.tokens.size(); ++i) {
          const auto at =
              static_cast<size_t>(std::ranges::find(whole.tokens, part.tokens[i]) - whole.tokens.begin());
          EXPECT_EQ(part.ahead[depth].tokens.at(i), whole.ahead[depth].tokens[at]);
          EXPECT_EQ(part.ahead[depth].labels.at(i), whole.ahead[depth].labels[at]);
        }
      }
      labels += part.ahead[1].valid_labels;
    }
    EXPECT_EQ(labels, whole.ahead[1].valid_labels);
  }
}

TEST(ContextPart, ARowThatCannotBeDividedIsRefused) {
  EXPECT_THROW(take_part(numbered_rows(), {0, 5, false}), Error);
  EXPECT_THROW(take_part(numbered_rows(), {0, 8, true}), Error);
  EXPECT_NO_THROW(take_part(numbered_rows(), {0, 8, false}));
}

}  // namespace
}  // namespace stepforge::testing
