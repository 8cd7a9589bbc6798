// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/added_tokens.h"

#include <gtest/gtest.h>

#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

/// The ids of `text` if "qr" (id 260) is an added token with one flag set.
Ids encode_with(const char* flag, const std::string& text) {
  Json json = good_definition();
  Json token = json["added_tokens"][0];
  token["content"] = "qr";
  token["id"] = 260;
  token[flag] = true;
  json["added_tokens"].push_back(token);
  return tokenizer_of(json)->encode(text);
}

TEST(AddedTokens, ASingleWordIsNotFoundBesideCharactersOfWords) {
  EXPECT_EQ(encode_with("special", "xqr"), (Ids{'x', 260}));
  EXPECT_EQ(encode_with("single_word", "xqr"), (Ids{'x', 'q', 'r'}));
  EXPECT_EQ(encode_with("single_word", "qr_"), (Ids{'q', 'r', '_'}));
  EXPECT_EQ(encode_with("single_word", "qr."), (Ids{260, '.'}));
  EXPECT_EQ(encode_with("single_word", "qr\u00E9"), (Ids{'q', 'r', 0xC3, 0xA9}));
}

TEST(AddedTokens, StrippingTakesTheWhiteSpaceBeside) {
  EXPECT_EQ(encode_with("lstrip", "x \u3000qr y"), (Ids{'x', 260, ' ', 'y'}));
  EXPECT_EQ(encode_with("rstrip", "x qr \n\u3000y"), (Ids{'x', ' ', 260, 'y'}));
  EXPECT_EQ(encode_with("lstrip", "qr qr"), (Ids{260, 260}));
}

TEST(AddedTokens, NormalizedTokensAreFoundInNormalizedText) {
  Json json = good_definition();
  json["normalizer"] = {{"type", "Lowercase"}};
  Json token = json["added_tokens"][0];
  token["content"] = "QR";
  token["id"] = 260;
  json["added_tokens"].push_back(token);
  EXPECT_EQ(tokenizer_of(json)->encode("QR qR"), (Ids{260, ' ', 'q', 'r'}));
  json["added_tokens"][1]["normalized"] = true;
  EXPECT_EQ(tokenizer_of(json)->encode("QR qR"), (Ids{260, ' ', 260}));
}

}  // namespace
}  // namespace stepforge::testing
