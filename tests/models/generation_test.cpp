// SPDX-License-Identifier: Apache-2.0
// Generation with the KV cache against full recomputation, and sampling.
#include "stepforge/train/generation.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/plan/step_plan.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kCapacity = 48;

SamplingParams greedy(int64_t max_tokens) {
  SamplingParams options;
  options.max_tokens = max_tokens;
  options.temperature = 0.0;
  return options;
}

struct GenerationCase {
  std::string family;
  DType compute;
};

class Generation : public ::testing::TestWithParam<GenerationCase> {
 protected:
  Generation() : tiny(tiny_config(GetParam().family), GetParam().compute), prompt({5, 1, 90, 17, 3}) {
    // Logits far enough apart that rounding cannot change the choice.
    for (size_t u = 0; u < tiny.store.size(); ++u) tiny.store.unit(u).master().mul_(4.0);
    for (size_t u = 0; u < tiny.store.size(); ++u) {
      if (!tiny.store.unit(u).resident()) tiny.store.unit(u).release();
    }
  }
  Generator generator() {
    return {tiny.spec,          plan_generation(GetParam().compute, tiny.spec, kCapacity),
            tiny.model,         tiny.store,
            GetParam().compute, kCapacity};
  }

  TinyModel tiny;
  std::vector<int32_t> prompt;
};

TEST_P(Generation, GreedyEqualsFullRecomputationTokenByToken) {
  Generator with_cache = generator();
  const std::vector<int32_t> generated = with_cache.generate(prompt, greedy(24), {});
  ASSERT_EQ(generated.size(), 24U);
  std::vector<int32_t> tokens = prompt;
  for (const int32_t token : generated) {
    const std::vector<float> logits = with_cache.logits_after(tokens);
    EXPECT_EQ(token, sample_token(logits, greedy(1), 0)) << "token " << tokens.size();
    tokens.push_back(token);
  }
  EXPECT_GT(std::set<int32_t>(generated.begin(), generated.end()).size(), 2U)
      << "the model repeats one or two tokens";
}

std::vector<GenerationCase> generation_cases() {
  std::vector<GenerationCase> cases = {{"qwen3", DType::bf16}};
  for (const std::string& family : family_names()) cases.push_back({family, DType::f32});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, Generation, ::testing::ValuesIn(generation_cases()), [](const auto& info) {
  return info.param.family + (info.param.compute == DType::f32 ? "_fp32" : "_bf16");
});

class LlamaGeneration : public ::testing::Test {
 protected:
  LlamaGeneration()
      : tiny(config()),
        generator(tiny.spec, plan_generation(DType::f32, tiny.spec, kCapacity), tiny.model, tiny.store,
                  DType::f32, kCapacity) {
    for (size_t u = 0; u < tiny.store.size(); ++u) tiny.store.unit(u).master().mul_(4.0);
  }
  static ModelConfig config() {
    ModelConfig config = tiny_config();
    config.vocab_size = 257;  // bytes
    return config;
  }
  std::string text(const SamplingParams& options, std::vector<std::string>* pieces = nullptr) {
    return generate_text(generator, *tokenizer, tokenizer->encode("In the beginning"), {}, options,
                         [&](std::string_view piece) {
                           if (pieces != nullptr) pieces->emplace_back(piece);
                         });
  }

  TinyModel tiny;
  Generator generator;
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
};

TEST_F(LlamaGeneration, StopsAtTheEndOfText) {
  const std::vector<int32_t> prompt = {1, 2, 3};
  const std::vector<int32_t> all = generator.generate(prompt, greedy(6), {});
  const int32_t eos = all.at(3);
  std::vector<int32_t> expected(all.begin(), std::find(all.begin(), all.end(), eos));
  EXPECT_EQ(generator.generate(prompt, greedy(6), {{eos}}), expected);
}

TEST_F(LlamaGeneration, TakesOnlyIdsThatTheTokenizerHas) {
  SamplingParams options;
  options.max_tokens = 24;
  options.temperature = 1e6;  // all alike
  options.known_tokens = 3;
  for (const int32_t id : generator.generate(tokenizer->encode("In"), options, {})) EXPECT_LT(id, 3);
}

TEST_F(LlamaGeneration, StopsWhenTheCacheIsFullAndRefusesAPromptThatFillsIt) {
  const std::vector<int32_t> prompt(kCapacity - 2, 7);
  EXPECT_EQ(generator.generate(prompt, greedy(100), {}).size(), 3U);
  const std::vector<int32_t> full(kCapacity, 7);
  EXPECT_CONTAINS(message_of<UsageError>([&] { generator.generate(full, greedy(1), {}); }), "48 tokens");
  EXPECT_CONTAINS(message_of<UsageError>([&] { generator.generate({}, greedy(1), {}); }), "prompt is empty");
}

TEST_F(LlamaGeneration, TheSameSeedGivesTheSameTextAndAnotherSeedAnother) {
  SamplingParams options;
  options.max_tokens = 20;
  options.temperature = 1.5;
  const std::string once = text(options);
  EXPECT_EQ(text(options), once);
  options.seed = 43;
  EXPECT_NE(text(options), once);
}

TEST_F(LlamaGeneration, AStopStringEndsTheTextAndIsNeverPrintedEvenInPart) {
  SamplingParams options = greedy(24);
  const std::string whole = text(options);
  ASSERT_GT(whole.size(), 8U);
  for (size_t begin = 0; begin + 3 < whole.size(); ++begin) {
    const std::string stop = whole.substr(begin, 3);
    const std::string expected = whole.substr(0, whole.find(stop));
    // The second one never occurs, but the text begins with a part of it.
    options.stop = {stop, whole.substr(0, 6) + "never"};
    std::vector<std::string> pieces;
    EXPECT_EQ(text(options, &pieces), expected);
    std::string printed;
    for (const auto& piece : pieces) printed += piece;
    EXPECT_EQ(printed, expected);
  }
}

TEST_F(LlamaGeneration, TextHeldBackAsAPossibleStopIsPrintedAtTheEnd) {
  SamplingParams options = greedy(12);
  const std::string whole = text(options);
  options.stop = {whole.substr(whole.size() - 2) + "\x01\x02never"};
  std::vector<std::string> pieces;
  EXPECT_EQ(text(options, &pieces), whole);
  std::string printed;
  for (const auto& piece : pieces) printed += piece;
  EXPECT_EQ(printed, whole);
}

const std::vector<float> logits = {1.0F, 3.0F, 2.0F, 3.0F, -std::numeric_limits<float>::infinity()};

std::map<int32_t, double> frequencies(SamplingParams options) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> result;
  for (int i = 0; i < kDraws; ++i) result[sample_token(logits, options, i)] += 1.0 / kDraws;
  return result;
}

TEST(SampleToken, GreedyTakesTheLowestIdAmongTheLikeliest) {
  EXPECT_EQ(sample_token(logits, greedy(1), 0), 1);
}

TEST(SampleToken, FollowsTheSoftmaxAtItsTemperature) {
  SamplingParams options;
  options.temperature = 2.0;
  const auto found = frequencies(options);
  const double total = std::exp(0.5) + 2 * std::exp(1.5) + std::exp(1.0);
  EXPECT_NEAR(found.at(0), std::exp(0.5) / total, 0.015);
  EXPECT_NEAR(found.at(1), std::exp(1.5) / total, 0.015);
  EXPECT_NEAR(found.at(2), std::exp(1.0) / total, 0.015);
  EXPECT_EQ(found.count(4), 0U);
}

TEST(SampleToken, TopKKeepsTheKLikeliest) {
  SamplingParams options;
  options.temperature = 1.0;
  options.top_k = 1;
  EXPECT_EQ(frequencies(options).size(), 1U);
  EXPECT_EQ(frequencies(options).count(1), 1U);
  options.top_k = 3;
  const auto found = frequencies(options);
  EXPECT_EQ(found.size(), 3U);
  EXPECT_EQ(found.count(0), 0U);
}

TEST(SampleToken, TopPKeepsTheSmallestSetThatReachesIt) {
  SamplingParams options;
  options.temperature = 1.0;
  options.top_p = 0.3;  // the likeliest alone has 0.40
  EXPECT_EQ(frequencies(options).size(), 1U);
  options.top_p = 0.6;
  const auto found = frequencies(options);
  EXPECT_EQ(found.size(), 2U);
  EXPECT_EQ(found.count(1) + found.count(3), 2U);
}

TEST(SampleToken, ADrawDependsOnSeedAndPositionOnly) {
  SamplingParams options;
  options.temperature = 1.0;
  std::set<int32_t> by_position;
  std::set<int32_t> by_seed;
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(sample_token(logits, options, i), sample_token(logits, options, i));
    by_position.insert(sample_token(logits, options, i));
    SamplingParams other = options;
    other.seed = static_cast<uint64_t>(i);
    by_seed.insert(sample_token(logits, other, 0));
  }
  EXPECT_GT(by_position.size(), 1U);
  EXPECT_GT(by_seed.size(), 1U);
}

}  // namespace
}  // namespace stepforge::testing
