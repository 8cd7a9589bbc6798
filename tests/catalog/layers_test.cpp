// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/layers.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/modelspec/call_cost.h"

namespace stepforge::testing {
namespace {

TEST(LossChunk, HasAboutFourMebibytesOfLogitsInMultiplesOf64Tokens) {
  for (const int64_t vocab : {257, 4096, 32000, 151936}) {
    const int64_t chunk = automatic_loss_chunk(vocab);
    EXPECT_EQ(chunk % 64, 0) << vocab;
    EXPECT_GE(chunk, 64) << vocab;
    if (chunk > 64) {
      EXPECT_LE(chunk * vocab * 4, int64_t{4} << 20) << vocab;
    }
    EXPECT_GT((chunk + 64) * vocab * 4, int64_t{4} << 20) << vocab;
  }
}

TEST(Layers, InitialResidualOutputsDecreaseWithTheLayer) {
  EXPECT_DOUBLE_EQ(residual_std(0), 0.02 / std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(residual_std(7), 0.02 / 4.0);
  const LayerSpec mlp = mlp_layer("layers.7.mlp", "model.layers.7.", 8, 16, {}, residual_std(7), false);
  EXPECT_DOUBLE_EQ(mlp.parameters.back().sub_tensors.front().init.std, 0.02 / 4.0);
}

TEST(Layers, PackedParametersHaveTheirPartsAsSubTensorsInOrder) {
  const AttentionDims dims{.width = 32, .heads = 4, .kv_heads = 2, .head_dim = 12};
  const LayerSpec attention = attention_layer("layers.0.attention", "model.layers.0.", dims, {}, 0.01, false);
  const ParameterSpec& qkv = attention.parameters.at(1);
  EXPECT_EQ(qkv.shape, (std::vector<int64_t>{48 + 24 + 24, 32}));
  EXPECT_EQ(qkv.sub_tensors.at(0).name + qkv.sub_tensors.at(1).name + qkv.sub_tensors.at(2).name, "qkv");
  EXPECT_EQ(qkv.sub_tensors.at(0).rows, 48);
  EXPECT_EQ(qkv.sub_tensors.at(2).rows, 24);
  const LayerSpec mlp = mlp_layer("layers.0.mlp", "model.layers.0.", 32, 56, {}, 0.01, false);
  EXPECT_EQ(mlp.parameters.at(1).sub_tensors.at(0).name, "gate");
  EXPECT_EQ(mlp.parameters.at(1).sub_tensors.at(1).name, "up");
}

TEST(Layers, NormsStartAtOneAndDoNotDecay) {
  const LayerSpec head = head_layer("head", {.width = 32, .vocab = 100, .chunk = 64});
  EXPECT_EQ(head.parameters.at(0).sub_tensors.at(0).init.kind, Initializer::Kind::ones);
  EXPECT_FALSE(head.parameters.at(0).decays());
  EXPECT_EQ(head.parameters.at(1).tag, ParameterTag::head);
  EXPECT_EQ(head_layer("head", {.width = 32, .vocab = 100, .chunk = 64, .output = "embedding.weight"})
                .parameters.size(),
            1U);
}

TEST(Layers, AScoreIsOneRowThatBeginsNormal) {
  const LayerSpec head = score_layer("head", {.width = 32}, 0.04);
  const ParameterSpec& score = head.parameters.at(1);
  EXPECT_EQ(score.name, "head.score");
  EXPECT_EQ(score.tag, ParameterTag::score);
  EXPECT_EQ(score.shape, (std::vector<int64_t>{1, 32}));
  EXPECT_EQ(score.sub_tensors.at(0).hf_name, "score.weight");
  EXPECT_EQ(score.sub_tensors.at(0).init.kind, Initializer::Kind::normal);
  EXPECT_EQ(score.sub_tensors.at(0).init.std, 0.04);
  EXPECT_TRUE(score.decays());
  EXPECT_EQ(list_cost(head.list, {.tokens = 10}).forward_flops, 10 * 2.0 * 32);
}

TEST(Layers, TheGradientOfTheOutputProjectionIsAProductAsLargeAsTheLogits) {
  const LayerSpec head = head_layer("head", {.width = 32, .vocab = 100, .chunk = 64});
  const BlockCost cost = list_cost(head.list, {.tokens = 10});
  EXPECT_EQ(cost.forward_flops, 10 * 2.0 * 32 * 100);
  EXPECT_EQ(cost.backward_weight_flops, cost.forward_flops);
  EXPECT_EQ(cost.backward_flops, 2 * cost.forward_flops);
}

}  // namespace
}  // namespace stepforge::testing
