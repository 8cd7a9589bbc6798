// SPDX-License-Identifier: Apache-2.0
#include <map>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/small_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// The slices of each tensor, by Hugging Face name.
using Slices = std::map<std::string, std::vector<TensorSlice>>;

Slices slices_of(const ModelSpec& spec) {
  Slices slices;
  for (const UnitSpec& unit : spec.units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (size_t s = 0; s < parameter.sub_tensors.size(); ++s)
        slices[parameter.sub_tensors[s].hf_name].push_back(parameter.slice_of(s));
  return slices;
}

/// Norms, experts and their routers, what is added to a sum.
bool is_whole_on_every_rank(const std::string& name) {
  for (const char* part : {"norm", "expert", "mlp.gate.", "mlp.router.", "o_proj.bias", "block_sparse_moe"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

void expect_parts_of_whole(const ModelConfig& model, int degree) {
  const ModelSpec whole = model_spec(model);
  Slices parts;
  for (int rank = 0; rank < degree; ++rank) {
    const ModelSpec part = model_spec(model, 0, {rank, degree});
    ASSERT_EQ(part.units.size(), whole.units.size());
    for (const auto& [name, slices] : slices_of(part)) parts[name].push_back(slices.at(0));
  }
  for (const auto& [name, slices] : slices_of(whole)) {
    const bool is_whole = is_whole_on_every_rank(name);
    int64_t elements = 0;
    ASSERT_EQ(std::ssize(parts[name]), degree) << name;
    for (size_t i = 0; i < parts[name].size(); ++i) {
      EXPECT_TRUE(contains(slices[0], parts[name][i])) << name;
      elements += parts[name][i].elements();
      for (size_t j = 0; j < i && !is_whole; ++j)
        EXPECT_FALSE(intersection(parts[name][i], parts[name][j])) << name << " of " << i << " and " << j;
    }
    EXPECT_EQ(elements, slices[0].elements() * (is_whole ? degree : 1)) << name;
  }
}

TEST(TensorParallelSpec, ThePartsOfAllRanksAreEachMatrixOnceAndNormsAndExpertsWhole) {
  for (const std::string& family : family_names()) {
    if (needs_whole_attention(family)) continue;
    for (const bool tied : {false, true})
      for (const int degree : {1, 2, 3, 6}) expect_parts_of_whole(small_model(family, 12, 6, tied), degree);
  }
}

TEST(TensorParallelSpec, ABiasIsDividedLikeTheRowsOfItsProjection) {
  const ModelSpec part = model_spec(small_model("qwen2", 12, 6), 0, {1, 3});
  const ParameterSpec& bias = *part.find_parameter("layers.0.attention.qkv_bias");
  EXPECT_EQ(bias.shape, (std::vector<int64_t>{40 + 20 + 20}));
  EXPECT_EQ(bias.slice_of(0).offsets, (std::vector<int64_t>{40}));
  EXPECT_EQ(bias.slice_of(2).offsets, (std::vector<int64_t>{20}));
  EXPECT_EQ(bias.tensor_shape(2), (std::vector<int64_t>{60}));
  EXPECT_FALSE(bias.decays());
  const TensorPlan plan({{"attention", TensorStyle::replicate}});
  EXPECT_FALSE(
      model_spec(small_model("qwen2", 12, 6), 0, {1, 3}, {}, plan).find_parameter(bias.name)->is_sliced());
}

TEST(TensorParallelSpec, HeadsThatAreNormedTogetherMustNotBeDivided) {
  const ModelConfig model = small_model("olmo2", 12, 6);
  const std::string message = message_of<UsageError>([&] { model_spec(model, 0, {0, 2}); });
  EXPECT_CONTAINS(message, "olmo2");
  EXPECT_CONTAINS(message, "tensor_parallel_plan");
  const TensorPlan plan({{"attention", TensorStyle::replicate}});
  const ModelSpec spec = model_spec(model, 0, {0, 2}, {}, plan);
  EXPECT_FALSE(spec.find_parameter("layers.0.attention.qkv")->is_sliced());
  EXPECT_TRUE(spec.find_parameter("layers.0.mlp.down")->is_sliced());
  check_value_types(spec);
}

TEST(TensorParallelSpec, ARankHoldsWholeHeadsOfQueriesKeysAndValues) {
  const ModelSpec part = model_spec(small_model("llama", 12, 6), 0, {1, 3});
  const ParameterSpec& qkv = *part.find_parameter("layers.0.attention.qkv");
  EXPECT_EQ(qkv.shape, (std::vector<int64_t>{40 + 20 + 20, 24}));
  EXPECT_EQ(qkv.slice_of(0).offsets, (std::vector<int64_t>{40, 0}));
  EXPECT_EQ(qkv.slice_of(2).offsets, (std::vector<int64_t>{20, 0}));
  EXPECT_EQ(qkv.tensor_shape(2), (std::vector<int64_t>{60, 24}));
  const ParameterSpec& out = *part.find_parameter("layers.0.attention.out");
  EXPECT_EQ(out.slice_of(0).offsets, (std::vector<int64_t>{0, 40}));
  EXPECT_EQ(out.shape, (std::vector<int64_t>{24, 40}));
  EXPECT_EQ(part.kv_heads, 2);
  EXPECT_EQ(part.attention_width, 40);
}

TEST(TensorParallelSpec, AScoreIsWholeOnEveryRank) {
  for (const bool tied : {false, true}) {
    for (const bool sequence : {false, true}) {
      ModelConfig model = small_model("llama", 12, 6, tied);
      model.head = HeadKind::score;
      const ModelSpec part = model_spec(model, 0, {1, 3, sequence});
      EXPECT_FALSE(part.find_parameter("head.score")->is_sliced());
      EXPECT_TRUE(part.find_parameter("embedding.weight")->is_sliced());
      EXPECT_TRUE(part.ties.empty());
      check_value_types(part);
    }
  }
}

TEST(TensorParallelSpec, BlocksStateTheBytesThatTheySum) {
  const CostContext context{.tokens = 100, .document_length = 50, .compute = DType::bf16};
  const auto cost = [&](const char* family, int degree, size_t block) {
    return block_cost(model_spec(small_model(family, 12, 6), 64, {0, degree}).blocks.at(block), context);
  };
  const int64_t hidden = 100 * 24 * 2;
  EXPECT_EQ(cost("llama", 1, 1).forward_exchange[0], 0);
  EXPECT_EQ(cost("llama", 2, 0).forward_exchange[0], hidden);
  EXPECT_EQ(cost("llama", 2, 1).forward_exchange[0], 2 * hidden);
  EXPECT_EQ(cost("llama", 2, 1).backward_exchange[0], 2 * hidden);
  EXPECT_EQ(cost("qwen3", 2, 1).backward_exchange[0], 2 * hidden + 2 * 10 * 4);
  EXPECT_EQ(cost("llama", 2, 3).forward_exchange[0], 100 * 24);
  EXPECT_EQ(cost("llama", 2, 3).backward_exchange[0], hidden);
}

TEST(TensorParallelSpec, WithSlicesRanksExchangeTheirTokensAndPassOnlyThose) {
  const CostContext context{.tokens = 100, .document_length = 50, .compute = DType::bf16, .slices = 2};
  const auto cost = [&](const char* family, TensorParallel tensor, size_t block) {
    return block_cost(model_spec(small_model(family, 12, 6), 64, tensor).blocks.at(block), context);
  };
  const TensorParallel sequence{0, 2, true};
  const int64_t hidden = 100 * 24 * 2;
  const int64_t norm = 24 * 4;
  EXPECT_EQ(cost("llama", sequence, 0).forward_exchange[0], hidden);
  EXPECT_EQ(cost("llama", sequence, 0).backward_exchange[0], hidden);
  EXPECT_EQ(cost("llama", sequence, 1).forward_exchange[0], 4 * hidden);
  EXPECT_EQ(cost("llama", sequence, 1).backward_exchange[0], 6 * hidden + 2 * norm);
  EXPECT_EQ(cost("qwen3", sequence, 1).backward_exchange[0], 6 * hidden + 2 * norm + 2 * 10 * 4);
  EXPECT_EQ(cost("llama", sequence, 3).forward_exchange[0], hidden + 100 * 24);
  EXPECT_EQ(cost("llama", sequence, 3).backward_exchange[0], hidden + norm);
  EXPECT_EQ(cost("llama", sequence, 1).output_bytes, hidden / 2);
  EXPECT_LT(cost("llama", sequence, 1).saved_bytes, cost("llama", {0, 2}, 1).saved_bytes);
  const ModelSpec spec = model_spec(small_model("llama", 12, 6), 64, sequence);
  EXPECT_TRUE(spec.blocks.at(0).outputs.at(0).slice);
  EXPECT_TRUE(spec.blocks.at(3).inputs.at(0).slice);
}

TEST(TensorParallelSpec, WithoutLossParallelRanksExchangeTheLogits) {
  const CostContext context{.tokens = 100, .document_length = 50, .compute = DType::f32};
  const ModelConfig model = small_model("llama", 12, 6);
  const ModelSpec spec = model_spec(model, 64, {0, 2, false, true});
  EXPECT_EQ(block_cost(spec.blocks.at(3), context).forward_exchange[0], 100 * model.vocab_size * 4);
}

TEST(TensorParallelSpec, RefusesDegreesThatDoNotFitWithBothNumbers) {
  const auto refusal = [](ModelConfig model, int degree) {
    return message_of<UsageError>([&] { model_spec(model, 0, {0, degree}); });
  };
  ModelConfig model = small_model("llama", 12, 6);
  EXPECT_CONTAINS(refusal(model, 5), "parallelism.tensor_parallel_degree = 5, but model.n_heads = 12");
  EXPECT_CONTAINS(refusal(model, 4), "parallelism.tensor_parallel_degree = 4, but model.n_kv_heads = 6");
  model.ffn_dim = 5;
  EXPECT_CONTAINS(refusal(model, 6), "model.ffn_dim = 5: the degree must not be larger");
  model.ffn_dim = 6;
  model.vocab_size = 5;
  EXPECT_CONTAINS(refusal(model, 6), "model.vocab_size = 5");
}

}  // namespace
}  // namespace stepforge::testing
