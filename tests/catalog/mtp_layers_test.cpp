// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/mtp_layers.h"

#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/format.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/pipeline_stages.h"
#include "stepforge/config/load.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/all_families.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

ModelConfig mtp_model(int64_t depths) {
  ModelConfig model;
  model.family = "deepseek_v3";
  model.dim = 48;
  model.n_layers = 3;
  model.n_heads = 4;
  model.vocab_size = 96;
  model.first_dense_layers = 1;
  use_all_settings(model);
  model.n_mtp_layers = depths;
  return model;
}

const BlockSpec& block_of(const ModelSpec& spec, const std::string& name) {
  return *std::ranges::find(spec.blocks, name, &BlockSpec::name);
}

std::vector<std::string> names_of(const std::vector<BundleEntry>& values) {
  std::vector<std::string> names;
  for (const BundleEntry& value : values) names.push_back(value.name);
  return names;
}

std::set<std::string> parameters_of(const ModelSpec& spec, const BlockSpec& block) {
  std::set<std::string> names;
  for (const int unit : block.units)
    for (const ParameterSpec& parameter : spec.units.at(static_cast<size_t>(unit)).parameters)
      names.insert(parameter.name);
  return names;
}

TEST(MtpLayers, AreAChainAfterTheHeadOfTheModel) {
  const ModelSpec spec = model_spec(mtp_model(2));
  std::vector<std::string> names;
  for (const BlockSpec& block : spec.blocks) names.push_back(block.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding", "layers.0", "layers.1", "layers.2", "head",
                                             "layers.3.mtp", "layers.3", "layers.3.head", "layers.4.mtp",
                                             "layers.4", "layers.4.head"}));
  EXPECT_EQ(names_of(spec.blocks[0].outputs),
            (std::vector<std::string>{"hidden", "embedded.1", "embedded.2"}));
  EXPECT_EQ(names_of(spec.blocks[1].inputs), std::vector<std::string>{"hidden"});
  EXPECT_EQ(names_of(block_of(spec, "layers.4.mtp").inputs),
            (std::vector<std::string>{"hidden", "embedded.2"}));
  for (const BlockSpec& block : spec.blocks) {
    const bool first = block.name.starts_with("layers.3");
    EXPECT_EQ(block.ahead, first ? 1 : block.name.starts_with("layers.4") ? 2 : 0) << block.name;
    EXPECT_EQ(block.loss_weight, block.kind == BlockKind::head && block.ahead > 0 ? 0.15 : 1.0) << block.name;
  }
  EXPECT_EQ(spec.layers, 3);
  EXPECT_EQ(spec.ahead, 2);
  check_value_types(spec);
}

TEST(MtpLayers, ShareTheOutputProjectionAndTheNormOfTheDepthBefore) {
  for (const bool tied : {false, true}) {
    ModelConfig model = mtp_model(2);
    model.tie_embeddings = tied;
    const ModelSpec spec = model_spec(model);
    const std::string output = tied ? "embedding.weight" : "head.weight";
    using Set = std::set<std::string>;
    EXPECT_EQ(parameters_of(spec, block_of(spec, "head")), (Set{"head.norm", output}));
    EXPECT_EQ(parameters_of(spec, block_of(spec, "layers.3.head")), (Set{"layers.3.head.norm", output}));
    EXPECT_EQ(parameters_of(spec, block_of(spec, "layers.3.mtp")),
              (Set{"head.norm", "layers.3.mtp.embedding_norm", "layers.3.mtp.hidden_norm",
                   "layers.3.mtp.projection"}));
    EXPECT_TRUE(parameters_of(spec, block_of(spec, "layers.4.mtp")).contains("layers.3.head.norm"));
  }
}

TEST(MtpLayers, HaveTheNamesOfPublishedWeights) {
  const ModelSpec spec = model_spec(mtp_model(1));
  std::set<std::string> names;
  for (const UnitSpec& unit : spec.units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const SubTensor& tensor : parameter.sub_tensors) names.insert(tensor.hf_name);
  for (const CopySpec& copy : spec.copies) names.insert(copy.hf_name);
  for (const char* name :
       {"embed_tokens.weight", "enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight",
        "shared_head.head.weight", "input_layernorm.weight", "mlp.gate.weight",
        "mlp.gate.e_score_correction_bias", "mlp.experts.5.down_proj.weight"})
    EXPECT_TRUE(names.contains(format("model.layers.3.{}", name))) << name;
}

/// 11.6 billion in the published model.
TEST(MtpLayers, CountAsALayerWithItsProjectionAndNormsAndInFlopsAsAHeadToo) {
  const std::vector<std::string> preset = {"preset=deepseek-v3"};
  ModelConfig model = load_config({}, preset, ConfigUse::inspect).config.model;
  const ModelSpec without = model_spec(model);
  model.n_mtp_layers = 1;
  const ModelSpec with = model_spec(model);
  const int64_t layer = std::ranges::find(without.units, "layers.60", &UnitSpec::name)->elements();
  const int64_t added = with.parameter_count() - without.parameter_count();
  EXPECT_EQ(added, layer + 2 * model.dim * model.dim + 3 * model.dim + model.n_experts);
  const int64_t active = with.active_parameter_count() - without.active_parameter_count();
  const double attention = 6.0 * 128 * (192.0 + 128.0) * 4096;
  EXPECT_NEAR(with.flops_per_token(4096) - without.flops_per_token(4096),
              6.0 * static_cast<double>(active + model.vocab_size * model.dim) + attention, 1e3);
}

TEST(MtpLayers, OfAPipelineAreInTheStageOfTheHead) {
  const ModelSpec spec = model_spec(mtp_model(2));
  const std::vector<int> expected = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  StagePlan by_name;
  by_name.blocks = {{"embedding", "layers.0", "layers.1"}, {"layers.2", "head"}};
  EXPECT_EQ(stages_of_blocks(spec, by_name, {}, {}), expected);
  StagePlan by_count;  // of 3 layers, embedding and head count as one each
  by_count.stages = 2;
  by_count.layers_per_stage = 3;
  EXPECT_EQ(stages_of_blocks(spec, by_count, {}, {}), expected);
  StagePlan too_many;  // embedding, 3 layers, head
  too_many.stages = 6;
  EXPECT_CONTAINS(message_of<UsageError>([&] { planned_stages(spec, too_many); }),
                  "6 pipeline stages for 5 blocks (embedding, 3 layers, head)");
}

TEST(MtpLayers, OfSlicesOfTheTokensHaveWholeWeightsThatTheStepSumsOverThem) {
  const TensorParallel slices{.rank = 0, .degree = 2, .sequence = true};
  const std::vector<TensorPlanRule> rules = {{"attention", TensorStyle::replicate}};
  const ModelSpec spec = model_spec(mtp_model(2), 0, slices, {}, TensorPlan(rules));
  for (const char* name : {"layers.3.mtp", "layers.4.mtp"})
    EXPECT_EQ(std::ranges::find(spec.units, name, &UnitSpec::name)->mesh, UnitMesh::slices);
  for (const BundleEntry& value : block_of(spec, "layers.3.mtp").inputs) EXPECT_TRUE(value.slice);
  check_value_types(spec);
}

TEST(MtpLayers, AreRefusedInFamiliesWithoutThem) {
  ModelConfig model;
  model.vocab_size = 96;
  model.n_mtp_layers = 1;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(model); }),
                  "model.n_mtp_layers = 1: models of the family \"llama\" have no such setting");
}

TEST(MtpLayers, ALossWeightWithoutThemIsRefused) {
  ModelConfig model = mtp_model(0);
  model.mtp_loss_weight = 0.1;
  EXPECT_CONTAINS(message_of<UsageError>([&] { model_spec(model); }), "model.mtp_loss_weight = 0.1");
}

}  // namespace
}  // namespace stepforge::testing
