// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/record_format.h"

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "tests/records/test_support.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

Ids tokens_of(const Tokenizer& tokenizer, const TextEnds& ends) {
  EncodedDocuments documents;
  PlainText(tokenizer, ends).encoder()->append("a wheel", documents);
  EXPECT_EQ(documents.ends, (std::vector<int64_t>{std::ssize(documents.tokens)}));
  EXPECT_EQ(documents.text_bytes, (std::vector<int64_t>{7}));
  EXPECT_TRUE(documents.counted.empty());
  return documents.tokens;
}

Ids joined(Ids left, const Ids& middle, const Ids& right) {
  left.insert(left.end(), middle.begin(), middle.end());
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// The post-processor of this tokenizer begins a text with <|start|>, which is 481.
TEST(PlainText, DocumentsBeginAsThePostProcessorSays) {
  const auto tokenizer = load_tokenizer(source_dir() / "tests/golden/text/llama3_like");
  const Ids text = tokenizer->encode("a wheel");
  const Ids eos = tokenizer->eos_id() ? Ids{*tokenizer->eos_id()} : Ids{};
  EXPECT_EQ(tokens_of(*tokenizer, {}), joined({481}, text, eos));
  EXPECT_EQ(tokens_of(*tokenizer, {.bos = false}), joined({}, text, eos));
  EXPECT_EQ(tokens_of(*tokenizer, {.eos = false}), joined({481}, text, {}));
}

TEST(PlainText, DocumentsEndWithTheEndOfTextTokenOnce) {
  const auto tokenizer = make_byte_tokenizer();
  const Ids text = tokenizer->encode("a wheel");
  EXPECT_EQ(tokens_of(*tokenizer, {}), joined({}, text, {256}));
  EXPECT_EQ(tokens_of(*tokenizer, {.eos = false}), text);
  EXPECT_NE(PlainText(*tokenizer).fingerprint(), PlainText(*tokenizer, {.eos = false}).fingerprint());
}

}  // namespace
}  // namespace stepforge::testing
