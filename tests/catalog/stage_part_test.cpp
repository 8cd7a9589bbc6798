// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/stage_part.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/pipeline_stages.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/small_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Stages = std::vector<int>;
using Names = std::vector<std::string>;

/// Six blocks in four stages: the embedding, layers 0 and 1, layer 2, layer 3 and the head.
ModelSpec in_four_stages(bool tied, const TensorParallel& tensor = {}) {
  ModelConfig model = small_model("qwen3", 4, 2, tied);
  model.n_layers = 4;
  ModelSpec spec = model_spec(model, 0, tensor);
  set_stages(spec, Stages{0, 1, 1, 2, 3, 3});
  return spec;
}

Names blocks_of(const ModelSpec& model) {
  Names names;
  for (const BlockSpec& block : model.blocks) names.push_back(block.name);
  return names;
}

Names units_of(const ModelSpec& model) {
  Names names;
  for (const UnitSpec& unit : model.units) names.push_back(unit.name);
  return names;
}

/// The names of the units that a block uses.
Names units_of(const ModelSpec& model, const BlockSpec& block) {
  Names names;
  for (const int unit : block.units) names.push_back(model.units.at(static_cast<size_t>(unit)).name);
  return names;
}

TEST(StagePart, HasTheBlocksOfItsStagesAndTheirUnits) {
  const ModelSpec whole = in_four_stages(/*tied=*/false);
  EXPECT_EQ(stage_count(whole), 4);
  const ModelSpec part = stage_part(whole, {1, 3});
  EXPECT_EQ(blocks_of(part), (Names{"layers.0", "layers.1", "layers.3", "head"}));
  EXPECT_EQ(units_of(part), blocks_of(part));
  EXPECT_EQ(part.blocks[1].stage, 1);
  EXPECT_EQ(part.blocks[2].stage, 3);
  EXPECT_EQ(part.blocks[2].layer, 3);
}

TEST(StagePart, BlocksUseTheSameUnitsAsInTheWholeModel) {
  for (const bool tied : {false, true}) {
    const ModelSpec whole = in_four_stages(tied);
    for (const Stages& stages : {Stages{0}, Stages{1}, Stages{2}, Stages{3}, Stages{0, 3}, Stages{1, 2}}) {
      const ModelSpec part = stage_part(whole, stages);
      for (const BlockSpec& block : part.blocks) {
        const auto same = std::ranges::find(whole.blocks, block.name, &BlockSpec::name);
        EXPECT_EQ(units_of(part, block), units_of(whole, *same)) << block.name;
      }
    }
  }
}

TEST(StagePart, ATiedHeadHasACopyOfTheEmbeddingAndTheTieStaysKnown) {
  const ModelSpec whole = in_four_stages(/*tied=*/true);
  EXPECT_EQ(units_of(stage_part(whole, {0})), (Names{"embedding"}));
  EXPECT_EQ(units_of(stage_part(whole, {2})), (Names{"layers.2"}));
  EXPECT_EQ(units_of(stage_part(whole, {3})), (Names{"embedding", "layers.3", "head"}));
  EXPECT_EQ(units_of(stage_part(whole, {0, 3})), (Names{"embedding", "layers.3", "head"}));
  for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(stage_part(whole, {stage}).ties.size(), 1);
}

TEST(StagePart, TheNumbersOfTheModelAreThoseOfTheWhole) {
  const ModelSpec whole = in_four_stages(/*tied=*/false);
  int64_t parameters = 0;
  for (int stage = 0; stage < 4; ++stage) {
    const ModelSpec part = stage_part(whole, {stage});
    EXPECT_EQ(part.layers, 4);
    EXPECT_EQ(part.vocab_size, whole.vocab_size);
    EXPECT_EQ(part.kv_heads, whole.kv_heads);
    parameters += part.parameter_count();
  }
  EXPECT_EQ(parameters, whole.parameter_count());
}

TEST(StagePart, OfAllStagesIsTheWhole) {
  const ModelSpec whole = in_four_stages(/*tied=*/true);
  const ModelSpec part = stage_part(whole, {0, 1, 2, 3});
  EXPECT_EQ(blocks_of(part), blocks_of(whole));
  EXPECT_EQ(units_of(part), units_of(whole));
  EXPECT_EQ(part.blocks.back().units, whole.blocks.back().units);
}

TEST(StagePart, TheTypesOfItsValuesFit) {
  for (const bool tied : {false, true}) {
    for (const TensorParallel& tensor : {TensorParallel{}, TensorParallel{1, 2, true}}) {
      for (int stage = 0; stage < 4; ++stage)
        EXPECT_NO_THROW(check_value_types(stage_part(in_four_stages(tied, tensor), {stage})));
    }
  }
}

TEST(StagePart, StagesThatAreNotAscendingOrHaveNoBlockAreRefused) {
  const ModelSpec whole = in_four_stages(/*tied=*/false);
  const auto refusal = [&](const Stages& stages) {
    return message_of<Error>([&] { stage_part(whole, stages); });
  };
  EXPECT_CONTAINS(refusal({4}), "stage 4 has no block; the model has 4 stages");
  EXPECT_CONTAINS(refusal({-1}), "stage -1 has no block");
  EXPECT_CONTAINS(refusal({2, 1}), "ascending");
  EXPECT_CONTAINS(refusal({1, 1}), "ascending");
}

}  // namespace
}  // namespace stepforge::testing
