// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/model_comparison.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

ModelConfig model() {
  ModelConfig config;
  config.vocab_size = 100;
  return config;
}

TEST(ModelDifferences, ListsFieldsThatChangeTheComputation) {
  ModelConfig other = model();
  other.family = "qwen3";
  other.n_heads = 16;
  other.head_dim = 32;
  other.norm_eps = 1e-6;
  other.rope_theta = 500000.0;
  EXPECT_EQ(model_differences(other, model()),
            (std::vector<std::string>{
                "model.family: \"qwen3\" there, \"llama\" here", "model.n_heads: 16 there, 8 here",
                "model.norm_eps: 1e-6 there, 1e-5 here", "model.rope_theta: 500000.0 there, 10000.0 here"}));
}

TEST(ModelDifferences, IgnoresFieldsThatDoNotChangeTheComputation) {
  ModelConfig other = model();
  other.head_dim = other.dim / other.n_heads;  // the meaning of 0
  other.dropout = 0.1;
  other.max_position = 4096;
  other.rope_scaling.factor = 32.0;  // unused without scaling
  other.query_pre_attn_scalar = other.head_dim;
  other.layer_types = {AttentionKind::full_attention};
  EXPECT_EQ(model_differences(other, model()), std::vector<std::string>());
  other.rope_scaling.type = RopeScalingType::llama3;
  EXPECT_EQ(model_differences(other, model()).size(), 2U);
}

}  // namespace
}  // namespace stepforge::testing
