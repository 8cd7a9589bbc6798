// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/show.h"

#include <gtest/gtest.h>

#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

Batch small_batch() {
  Batch batch = empty_batch(4, 1);
  append_row({.tokens = {'h', 'i', 256, '\n', 'x'}, .document_starts = {3}, .counted = {}}, 17, batch);
  return batch;
}

TEST(RenderBatch, ShowsTokensBoundariesPositionsAndLabels) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string text = render_batch(small_batch(), *tokenizer, {});
  EXPECT_CONTAINS(text, "row 17: 4 tokens, 2 document parts, 3 labels (1 ignored)");
  EXPECT_CONTAINS(text, "--- document part, positions 0 to 2 ---\n  h|i|<|endoftext|>\n");
  EXPECT_CONTAINS(text, "--- document part, positions 0 to 0 ---\n  \\n\n");
  EXPECT_CONTAINS(text, "      0        0     104  \"h\"                      105  \"i\"\n");
  EXPECT_CONTAINS(text,
                  "      2        2     256  \"<|endoftext|>\"         -100  ignored\n        --- document "
                  "boundary ---\n");
  EXPECT_EQ(text.find('\033'), std::string::npos);
}

TEST(RenderBatch, PrintsTheTableBeforeTheText) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string text = render_batch(small_batch(), *tokenizer, {});
  EXPECT_LT(text.find("position"), text.find("--- document part"));
}

TEST(RenderBatch, DimsIgnoredLabels) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string text = render_batch(small_batch(), *tokenizer, {.colour = true});
  EXPECT_CONTAINS(text, "\033[2m<|endoftext|>\033[0m");
  EXPECT_CONTAINS(text, "\033[36mh\033[0m\033[33mi\033[0m");
}

TEST(RenderBatch, ListsAtMostTheRequestedTokens) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string text = render_batch(small_batch(), *tokenizer, {.max_tokens = 1});
  EXPECT_CONTAINS(text, "\"h\"");
  EXPECT_CONTAINS(text, "... 3 more tokens");
  EXPECT_EQ(text.find("ignored\n"), std::string::npos);
}

}  // namespace
}  // namespace stepforge::testing
