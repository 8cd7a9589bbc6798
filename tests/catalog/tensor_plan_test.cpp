// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/tensor_plan.h"

#include <gtest/gtest.h>

#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/small_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Rules = std::vector<TensorPlanRule>;

ModelSpec planned(const Rules& rules, TensorParallel tensor = {1, 3, true}, bool tied = false) {
  ModelConfig model = small_model("qwen3", 6, 3, tied);
  model.n_layers = 3;
  return model_spec(model, 0, tensor, {}, TensorPlan(rules));
}

TEST(TensorPlan, WithoutRulesDividesMatricesAndReplicatesNorms) {
  const TensorPlan plan;
  EXPECT_EQ(plan.style_of("embedding.weight"), TensorStyle::rowwise);
  EXPECT_EQ(plan.style_of("layers.12.attention.qkv"), TensorStyle::colwise);
  EXPECT_EQ(plan.style_of("layers.12.mlp.down"), TensorStyle::rowwise);
  EXPECT_EQ(plan.style_of("layers.12.mlp.norm"), TensorStyle::replicate);
  EXPECT_EQ(plan.style_of("head.norm"), TensorStyle::replicate);
}

TEST(TensorPlan, TheFirstRuleThatMatchesCounts) {
  const TensorPlan plan(Rules{{"layers\\.0\\.mlp", TensorStyle::colwise}, {"mlp", TensorStyle::replicate}});
  EXPECT_EQ(plan.style_of("layers.0.mlp.gate_up"), TensorStyle::colwise);
  EXPECT_EQ(plan.style_of("layers.1.mlp.gate_up"), TensorStyle::replicate);
}

TEST(TensorPlan, ARankHasAllOfWhatIsReplicatedAndItsPartOfTheRest) {
  const ModelSpec spec = planned({{"layers\\.1\\.mlp", TensorStyle::replicate}});
  EXPECT_TRUE(spec.find_parameter("layers.0.mlp.down")->is_sliced());
  EXPECT_FALSE(spec.find_parameter("layers.1.mlp.down")->is_sliced());
  EXPECT_EQ(spec.find_parameter("layers.1.mlp.gate_up")->shape, (std::vector<int64_t>{106, 24}));
  EXPECT_TRUE(spec.find_parameter("layers.1.attention.out")->is_sliced());
}

TEST(TensorPlan, WithReplicatedAttentionTheDegreeNeedNotDivideItsHeads) {
  const TensorParallel tensor{1, 4, true};
  EXPECT_CONTAINS(message_of<UsageError>([&] { planned({}, tensor); }),
                  "model.n_heads = 6: the degree must divide it");
  const ModelSpec spec = planned({{"attention", TensorStyle::replicate}}, tensor);
  EXPECT_EQ(spec.kv_heads, 3);
  EXPECT_NO_THROW(check_value_types(spec));
}

TEST(TensorPlan, TheTypesOfEveryPlanFitTogether) {
  const char* const layers[] = {"embedding", "attention", "mlp", "head"};
  for (unsigned chosen = 0; chosen < 16; ++chosen) {
    Rules rules;
    for (size_t i = 0; i < 4; ++i)
      if ((chosen >> i & 1U) != 0) rules.push_back({layers[i], TensorStyle::replicate});
    for (const bool sequence : {false, true})
      for (const bool whole_logits : {false, true})
        EXPECT_NO_THROW(check_value_types(planned(rules, {2, 3, sequence, whole_logits})));
  }
  EXPECT_NO_THROW(
      check_value_types(planned({{"embedding", TensorStyle::replicate}}, {0, 3, true}, /*tied=*/true)));
}

TEST(TensorPlan, RefusesRulesThatDoNotFitAndNamesThem) {
  const auto refusal = [](const Rules& rules) { return message_of<UsageError>([&] { planned(rules); }); };
  EXPECT_CONTAINS(
      refusal({{"mlp.down", TensorStyle::replicate}}),
      "layers.0.mlp.gate_up and layers.0.mlp.down form one layer, but only some of them are replicated");
  EXPECT_CONTAINS(refusal({{"mlp", TensorStyle::rowwise}}),
                  "layers.0.mlp.gate_up cannot be rowwise; it can be colwise or replicate");
  EXPECT_CONTAINS(refusal({{"mlp.norm", TensorStyle::colwise}}),
                  "the norm layers.0.mlp.norm cannot be colwise; every rank has all of it");
  EXPECT_CONTAINS(refusal({{"layers\\.2\\.attention", TensorStyle::replicate}}),
                  "attention is divided in layer 0 and not in layer 2");
  EXPECT_CONTAINS(refusal({{"experts", TensorStyle::replicate}}), "pattern \"experts\" matches no parameter");
  EXPECT_CONTAINS(refusal({{"mlp", TensorStyle::replicate}, {"mlp", TensorStyle::colwise}}),
                  "or only parameters that earlier rules match");
  EXPECT_CONTAINS(refusal({{"(", TensorStyle::replicate}}), "pattern \"(\": not a regular expression");
}

}  // namespace
}  // namespace stepforge::testing
