// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/model_spec.h"

#include <gtest/gtest.h>

#include "stepforge/modelspec/calls/attention.h"

namespace stepforge::testing {
namespace {

ParameterSpec parameter(const std::string& name, std::vector<int64_t> shape, ParameterTag tag) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  spec.tag = tag;
  return spec;
}

ModelSpec two_units() {
  ModelSpec model;
  model.layers = 2;
  model.attention_width = 8;
  model.units.push_back(
      {"embedding", {parameter("embedding.weight", {32, 8}, ParameterTag::embedding)}, true});
  model.units.push_back({"head",
                         {parameter("norm.weight", {8}, ParameterTag::norm),
                          parameter("head.weight", {32, 8}, ParameterTag::head)},
                         true});
  // Two layers, each of one head of 8.
  const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 8};
  for (int layer = 0; layer < 2; ++layer) {
    ListWriter list("attention");
    const int qkv = list.input({"qkv", shape.qkv_width()});
    const int out = list.call(kAttention, "attention", {qkv}, {}, AttentionAttributes{shape});
    model.blocks.emplace_back().list = list.finish({out});
  }
  return model;
}

TEST(ParameterSpec, CountsItsElementsAndThoseOfARow) {
  const ParameterSpec packed = parameter("experts", {6, 4, 2}, ParameterTag::matrix);
  EXPECT_EQ(packed.elements(), 48);
  EXPECT_EQ(packed.row_elements(), 8);
}

TEST(ParameterSpec, NormsAndBiasesDoNotDecay) {
  EXPECT_FALSE(parameter("n", {1}, ParameterTag::norm).decays());
  EXPECT_FALSE(parameter("b", {1}, ParameterTag::bias).decays());
  EXPECT_TRUE(parameter("m", {1}, ParameterTag::matrix).decays());
  EXPECT_TRUE(parameter("e", {1}, ParameterTag::embedding).decays());
}

TEST(ModelSpec, CountsParametersAndFindsThemByName) {
  const ModelSpec model = two_units();
  EXPECT_EQ(model.parameter_count(), 256 + 8 + 256);
  ASSERT_NE(model.find_parameter("norm.weight"), nullptr);
  EXPECT_EQ(model.find_parameter("norm.weight")->elements(), 8);
  EXPECT_EQ(model.find_parameter("norm"), nullptr);
}

TEST(ModelSpec, OfParametersThatATokenUsesInPartOnlyThatPartIsActive) {
  ModelSpec model = two_units();
  EXPECT_EQ(model.active_parameter_count(), model.parameter_count());
  const double flops = model.flops_per_token(16);
  model.units[1].parameters.push_back(parameter("experts", {6, 4}, ParameterTag::matrix));
  model.units[1].parameters.back().used_share = 1.0 / 3.0;
  EXPECT_EQ(model.parameter_count(), 256 + 8 + 256 + 24);
  EXPECT_EQ(model.active_parameter_count(), 256 + 8 + 256 + 8);
  EXPECT_DOUBLE_EQ(model.flops_per_token(16), flops + 6.0 * 8);
}

TEST(ModelSpec, FlopsExcludeTheEmbeddingUnlessItIsTied) {
  ModelSpec model = two_units();
  EXPECT_DOUBLE_EQ(model.flops_per_token(16), 6.0 * (256 + 8) + 12.0 * 2 * 8 * 16);
  model.units[1].parameters.pop_back();
  model.ties.push_back({"embedding.weight", "head", "lm_head.weight"});
  EXPECT_DOUBLE_EQ(model.flops_per_token(16), 6.0 * (256 + 8) + 12.0 * 2 * 8 * 16);
}

}  // namespace
}  // namespace stepforge::testing
