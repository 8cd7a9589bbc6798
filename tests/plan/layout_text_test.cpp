// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/layout_text.h"

#include <gtest/gtest.h>

#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

std::string text_of(Config config, RankId rank, const std::string& family = "qwen3") {
  config.model.family = family;
  config.model.dim = 24;
  config.model.n_layers = 3;
  config.model.n_heads = 4;
  config.model.n_kv_heads = 2;
  config.model.ffn_dim = 50;
  config.model.vocab_size = 101;
  return layout_text(plan_job(config, rank));
}

TEST(LayoutText, StatesTheGroupsOfTheRank) {
  Config config;
  config.parallelism.data_parallel_replicate_degree = 2;
  config.parallelism.tensor_parallel_degree = 2;
  const std::string text = text_of(config, {5, 16});
  EXPECT_CONTAINS(
      text, "Layout of rank 5 of 16: dp_replicate 2 x dp_shard 4 x tp 2; it reads rows as data rank 2 of 8");
  EXPECT_CONTAINS(text, "fsdp          4      1 3 5 7                 number 2");
  EXPECT_CONTAINS(text, "tp            2      4 5                     number 1");
  EXPECT_CONTAINS(text, "world         16     0 1 2 3 4 5 6 7 ... 15  number 5");
}

TEST(LayoutText, OfAPipelineStatesTheUnitsOfTheRanksStages) {
  Config config;
  config.parallelism.pipeline_parallel_degree = 2;
  config.parallelism.tensor_parallel_degree = 2;
  config.model.tie_embeddings = true;
  config.training.local_batch_size = 1;
  config.training.global_batch_size = 4;
  const std::string first = text_of(config, {1, 8});
  EXPECT_CONTAINS(first,
                  "Layout of rank 1 of 8: dp_shard 2 x tp 2 x pp 2; it reads rows as data rank 0 of 2");
  EXPECT_CONTAINS(first, "pp     2      1 5              number 0");
  EXPECT_CONTAINS(first, "embedding");
  EXPECT_EQ(first.find("first stage"), std::string::npos) << first;
  const std::string last = text_of(config, {5, 8});
  EXPECT_CONTAINS(last, "head");
  EXPECT_CONTAINS(last, "first stage");
}

TEST(LayoutText, StatesHowUnitsAreShardedAndReduced) {
  Config config;
  config.parallelism.data_parallel_replicate_degree = 2;
  config.parallelism.tensor_parallel_degree = 2;
  config.parallelism.fsdp_partition = PartitionKind::by_tensor;
  config.precision.compute = DType::bf16;
  const std::string text = text_of(config, {0, 16});
  EXPECT_CONTAINS(text, "layers.* (each of 3)");
  EXPECT_CONTAINS(text, "fsdp  by_tensor  bf16         reduce-scatter fsdp, all-reduce dp_replicate  device");
  EXPECT_CONTAINS(text_of({}, {}), "-     flat       fp32         -         device");
}

TEST(LayoutText, StatesTheRanksPartOfEveryTensor) {
  Config config;
  config.parallelism.tensor_parallel_degree = 2;
  const std::string text = text_of(config, {1, 2});
  EXPECT_CONTAINS(text, "embedding.weight                       [101, 24]  rowwise    rows 50 to 100");
  EXPECT_CONTAINS(text, "layers.*.attention.qkv k (each of 3)   [12, 24]   colwise    rows 6 to 11");
  EXPECT_CONTAINS(text, "layers.*.mlp.down (each of 3)          [24, 50]   rowwise    columns 25 to 49  yes");
  EXPECT_CONTAINS(
      text,
      "layers.*.mlp.norm (each of 3)          [24]       replicate  all               first rank of tp");
  EXPECT_EQ(text.find("layers.1"), std::string::npos);
}

TEST(LayoutText, ExpertsOfOtherRanksAreNothing) {
  Config config;
  config.model.family = "qwen3_moe";
  config.model.n_experts = 4;
  config.model.experts_per_token = 2;
  config.model.dim = 24;
  config.model.n_layers = 1;
  config.model.n_heads = 4;
  config.model.n_kv_heads = 2;
  config.model.ffn_dim = 50;
  config.model.vocab_size = 101;
  config.parallelism.tensor_parallel_degree = 2;
  config.parallelism.expert_parallel_degree = 2;
  config.parallelism.expert_tensor_parallel_degree = 2;
  const std::string text = layout_text(plan_job(config, {1, 4}));
  EXPECT_CONTAINS(text, "layers.*.mlp.expert_gate_up 1.gate  [50, 24]   -          rows 25 to 49     yes\n");
  EXPECT_CONTAINS(text, "layers.*.mlp.expert_gate_up 2.gate  [50, 24]   -          nothing           -\n");
  EXPECT_CONTAINS(text, "layers.*.mlp.expert_down 3.down     [24, 50]   -          nothing           -\n");
  EXPECT_EQ(text.find("to -1"), std::string::npos);
}

TEST(LayoutText, StatesTheTypesOfValuesAndWhatCallsExchange) {
  Config config;
  config.parallelism.tensor_parallel_degree = 2;
  config.parallelism.context_parallel_degree = 2;
  const std::string text = text_of(config, {0, 4});
  EXPECT_CONTAINS(text, "tensor, gradient          context, gradient");
  EXPECT_CONTAINS(
      text,
      "layers.*.mlp.enter (each of 3)               R, P                      S(tokens), S(tokens)  "
      "gather over tensor                sum of slices over tensor, gather over tensor");
  EXPECT_CONTAINS(
      text,
      "layers.*.attention.attention (each of 3)     S(channels), S(channels)  S(tokens), S(tokens)  "
      "gather over context");
  EXPECT_CONTAINS(text, "sum over tensor (weights)");
  EXPECT_EQ(text_of({}, {}).find("gradient  "), text_of({}, {}).find("gradient  state"));
}

TEST(LayoutText, StatesHowTokensComeToTheirExperts) {
  Config config;
  config.model.n_experts = 4;
  config.model.experts_per_token = 2;
  config.model.moe_ffn_dim = 12;
  config.parallelism.expert_parallel_degree = 2;
  const auto lines = [&](DispatchMethod dispatcher) {
    config.parallelism.expert_parallel_dispatcher = dispatcher;
    return text_of(config, {0, 2}, "qwen3_moe");
  };
  const std::string rows = lines(DispatchMethod::all_to_all);
  EXPECT_CONTAINS(rows, "layers.*.experts.dispatch (each of 3)",
                  "all-to-all over experts  all-to-all over experts");
  const std::string tokens = lines(DispatchMethod::all_gather);
  EXPECT_CONTAINS(
      tokens,
      "layers.*.experts.dispatch (each of 3)            S(channels), S(channels)  gather over experts   "
      "      sum of slices over experts",
      "layers.*.experts.combine (each of 3)             V, V                      sum of slices over "
      "experts  gather over experts");
}

}  // namespace
}  // namespace stepforge::testing
