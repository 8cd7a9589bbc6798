// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/text_ends.h"

#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

/// "<|endoftext|>" is 256, then 257 and so on.
std::unique_ptr<Tokenizer> bytes_and(const std::vector<std::string>& added, bool special = true) {
  Json definition = Json::parse(tokenizer_json({}, kGpt2Pattern));
  for (const std::string& content : added) {
    Json token = special_token_json(content, 256 + std::ssize(definition["added_tokens"]));
    token["special"] = special;
    definition["added_tokens"].push_back(std::move(token));
  }
  return tokenizer_of(definition);
}

Ids ends_of(const std::string& text, const Tokenizer& tokenizer) {
  return answer_ends(ChatTemplate::from_source(text, "test"), tokenizer);
}

TEST(TextEnds, JoinThoseOfTheGenerationSettingsAndTheTokenizer) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(end_tokens(*tokenizer, nullptr), (Ids{256}));
  EXPECT_EQ(end_tokens(*tokenizer, {{"eos_token_id", 7}}), (Ids{7, 256}));
  EXPECT_EQ(end_tokens(*tokenizer, {{"eos_token_id", {7, 256, 9}}}), (Ids{7, 256, 9}));
}

TEST(TextEnds, OfAnAnswerAreTheTokensThatFollowItInTheTemplate) {
  const auto tokenizer = bytes_and({"<|im_start|>", "<|im_end|>", "<|call|>"});
  const std::string turn = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}";
  EXPECT_EQ(ends_of(turn + "<|im_end|>\n{% endfor %}", *tokenizer), (Ids{258}));
  EXPECT_EQ(ends_of(turn + " <|im_end|>{% endfor %}", *tokenizer), (Ids{258}));
  EXPECT_EQ(ends_of(turn + "{% if loop.last %}<|endoftext|>{% else %}<|im_end|>{% endif %}{% endfor %}",
                    *tokenizer),
            (Ids{256}));
  EXPECT_EQ(ends_of(turn + "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}<|call|>{% else %}"
                           "<|im_end|>{% endif %}\n{% endfor %}",
                    *tokenizer),
            (Ids{258, 259}));
  EXPECT_EQ(ends_of(turn + "\n\n### {% endfor %}", *tokenizer), (Ids{}));
  EXPECT_EQ(ends_of("{{ raise_exception('no') }}", *tokenizer), (Ids{}));
}

TEST(TextEnds, OfAnAnswerNeedNotBeSpecial) {
  const auto tokenizer = bytes_and({"<|im_end|>"}, /*special=*/false);
  EXPECT_EQ(ends_of("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", *tokenizer), (Ids{257}));
}

TEST(TextEnds, APromptBeginsAsADocumentOfTheTrainingData) {
  Json definition = Json::parse(
      bpe_tokenizer_json({.pieces = {"a", "b"}, .merges = {}, .special_tokens = {"<s>", "</s>"}}, {}, "<s>"));
  const auto tokenizer = tokenizer_of(definition);
  EXPECT_EQ(prompt_tokens(*tokenizer, "ab", /*bos=*/true), (Ids{2, 0, 1}));
  EXPECT_EQ(prompt_tokens(*tokenizer, "ab", /*bos=*/false), (Ids{0, 1}));
  EXPECT_EQ(prompt_tokens(*tokenizer, "", /*bos=*/true), (Ids{2}));
  const auto bytes = make_byte_tokenizer();
  EXPECT_EQ(prompt_tokens(*bytes, "a", true), (Ids{'a'}));
  EXPECT_EQ(prompt_tokens(*bytes, "", true), (Ids{256}));
}

}  // namespace
}  // namespace stepforge::testing
