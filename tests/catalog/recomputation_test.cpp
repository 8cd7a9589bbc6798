// SPDX-License-Identifier: Apache-2.0
// What backward makes again, of the layers of all families.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/modelspec/call_budget.h"
#include "tests/catalog/small_model.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kSeqLen = 64;

void expect_exact(const BlockSpec& block, const CostContext& context) {
  const std::vector<RecomputationChoice> choices = recomputation_choices(block, context);
  const BlockCost kept = block_cost(block, context);
  EXPECT_EQ(choices.front().saved_bytes, kept.saved_bytes);
  EXPECT_TRUE(choices.front().recomputed.empty());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const BlockCost cost = block_cost(block, context, choices[i].recomputed);
    EXPECT_EQ(choices[i].saved_bytes, cost.saved_bytes) << i;
    EXPECT_GE(cost.backward_flops, kept.backward_flops) << i;
    if (i > 0) {
      EXPECT_LT(choices[i].saved_bytes, choices[i - 1].saved_bytes) << i;
      EXPECT_GT(choices[i].work, choices[i - 1].work) << i;
    }
  }
}

TEST(RecomputationOfFamilies, ChoicesKeepWhatTheirCostSays) {
  for (const std::string& family : family_names()) {
    SCOPED_TRACE(family);
    for (const TensorParallel& tensor : {TensorParallel{}, TensorParallel{1, 2, true}}) {
      if (tensor.degree > 1 && needs_whole_attention(family)) continue;
      const ModelSpec model = model_spec(small_model(family, 4, 2), 0, tensor);
      const CostContext context{.tokens = 2 * kSeqLen, .document_length = kSeqLen, .slices = tensor.degree};
      for (const BlockSpec& block : model.blocks)
        if (block.kind == BlockKind::layer) expect_exact(block, context);
    }
  }
}

TEST(RecomputationOfFamilies, ABudgetMakesCheapCallsAgainBeforeProductsAndAttention) {
  ModelConfig config = small_model("llama", 8, 2);
  config.dim = 512;
  config.head_dim = 64;
  config.ffn_dim = 1536;
  const BlockSpec block = model_spec(config).blocks.at(1);
  const CostContext context{.tokens = kSeqLen, .document_length = kSeqLen};
  EXPECT_EQ(recomputation_within(block, context, 0.7).recomputed,
            (std::vector<std::string>{"attention.norm", "mlp.norm", "mlp.swiglu"}));
  const RecomputationChoice none = recomputation_within(block, context, 0);
  EXPECT_EQ(none.saved_bytes, 0);
}

}  // namespace
}  // namespace stepforge::testing
