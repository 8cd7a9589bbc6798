// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/post_processor.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

SpecialTokens read(const std::string& text) {
  const Json json = Json::parse(text);
  return read_post_processor(JsonReader(json, "t.json", "post_processor"), 10);
}

constexpr const char* kTemplate = R"({"type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
             {"SpecialToken": {"id": "</s>", "type_id": 0}}],
  "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1, 3], "tokens": ["<s>", "x"]},
                                 "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}})";
constexpr const char* kBert = R"({"type": "BertProcessing", "sep": ["[SEP]", 8], "cls": ["[CLS]", 7]})";

TEST(PostProcessor, ATemplatePutsItsTokensAroundTheText) {
  EXPECT_EQ(read(kTemplate).before, (Ids{1, 3}));
  EXPECT_EQ(read(kTemplate).after, (Ids{2}));
}

TEST(PostProcessor, BertPutsClassAndSeparatorAroundTheText) {
  EXPECT_EQ(read(kBert).before, (Ids{7}));
  EXPECT_EQ(read(kBert).after, (Ids{8}));
}

TEST(PostProcessor, ALaterStepOfASequencePutsItsTokensOutside) {
  const SpecialTokens tokens =
      read(std::string(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, )") + kBert + ", " +
           kTemplate + "]}");
  EXPECT_EQ(tokens.before, (Ids{1, 3, 7}));
  EXPECT_EQ(tokens.after, (Ids{8, 2}));
}

TEST(PostProcessor, RefusesWhatItDoesNotImplementWithItsPlace) {
  EXPECT_CONTAINS(message_of<FormatError>([] { return read(R"({"type": "Other"})"); }), "t.json",
                  "post_processor.type", "Other");
  EXPECT_CONTAINS(message_of<FormatError>(
                      [] { return read(R"({"type": "TemplateProcessing", "single": [], "pair": []})"); }),
                  "post_processor.single", "missing");
  EXPECT_CONTAINS(message_of<FormatError>([] {
                    return read(R"({"type": "BertProcessing", "sep": ["[SEP]", 10], "cls": ["[CLS]", 7]})");
                  }),
                  "post_processor.sep[1]", "10");
}

// Recorded with tokenizers 0.23.3: encode("a") of tests/golden/text/llama3_like.
TEST(PostProcessor, TheTokenizerTellsItsSpecialTokens) {
  const auto tokenizer = load_tokenizer(golden_folder("llama3_like"));
  EXPECT_EQ(tokenizer->special_tokens().before, (Ids{481}));
  EXPECT_TRUE(tokenizer->special_tokens().after.empty());
  EXPECT_TRUE(make_byte_tokenizer()->special_tokens().before.empty());
}

}  // namespace
}  // namespace stepforge::testing
