// SPDX-License-Identifier: Apache-2.0
// Ids recorded from Hugging Face `tokenizers` (tools/oracle/make_tokenizer_golden.py).
#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "stepforge/text/tokenizer.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, ReturnsTheIdsOfHuggingFaceTokenizers) {
  const auto tokenizer = load_tokenizer(golden_folder(GetParam()));
  const Json golden = read_json_file(golden_folder(GetParam()) / "golden.json");
  EXPECT_EQ(tokenizer->vocab_size(), golden["vocab_size"].get<int32_t>());
  ASSERT_GE(golden["cases"].size(), 25U);
  for (const Json& test : golden["cases"]) {
    const std::string text = test["text"].get<std::string>();
    const auto ids = test["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->encode(text), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Golden, ::testing::Values("llama3_like", "gpt2_like"),
                         [](const auto& info) { return info.param; });

// Recorded by tools/oracle/make_pipeline_golden.py: each changes one component of llama3_like.
TEST(GoldenPipeline, EveryComponentGivesTheIdsOfHuggingFaceTokenizers) {
  const Json base = read_json_file(golden_folder("llama3_like") / "tokenizer.json");
  const Json golden = read_json_file(source_dir() / "tests/golden/text/pipelines.json");
  ASSERT_GE(golden["pipelines"].size(), 60U);
  for (const Json& pipeline : golden["pipelines"]) {
    Json definition = base;
    definition["model"]["ignore_merges"] = false;
    definition["post_processor"] = nullptr;
    for (const char* key : {"added_tokens", "normalizer", "pre_tokenizer"}) definition[key] = pipeline[key];
    const auto tokenizer = tokenizer_of(definition);
    for (size_t i = 0; i < golden["texts"].size(); ++i) {
      const std::string text = golden["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer->encode(text), pipeline["ids"][i].get<std::vector<int32_t>>())
          << pipeline["name"] << ": " << text;
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
