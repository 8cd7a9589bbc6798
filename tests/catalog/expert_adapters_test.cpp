// SPDX-License-Identifier: Apache-2.0
// Adapters of the matrices of experts.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/peft_config.h"
#include "stepforge/modelspec/call_kind.h"
#include "stepforge/modelspec/calls/experts.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/low_rank.h"
#include "stepforge/modelspec/calls/magnitude.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/small_adapter.h"
#include "tests/catalog/small_model.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

const std::string kAllExperts = ".*\\.experts\\..*";

AdapterConfig lora_of_experts(Strings targets = {kAllExperts}) {
  return small_lora(std::move(targets));
}

/// Layers of six experts [20, 24], of which a token takes three.
ModelSpec adapted_experts(const AdapterConfig& adapter, const ExpertParallel& experts = {},
                          const std::string& family = "qwen3_moe") {
  ModelSpec model = model_spec(small_model(family, 8, 4), 64, {}, {}, {}, experts);
  add_adapters(model, adapter, {DType::bf16});
  return model;
}

const ParameterSpec& expert_parameter(const ModelSpec& model, const std::string& name) {
  const ParameterSpec* found = model.find_parameter("layers.0.mlp." + name);
  if (found == nullptr) throw Error("no parameter " + name);
  return *found;
}

/// Of the layer 0.
const Call& expert_call(const ModelSpec& model, const std::string& name) {
  for (const BlockSpec& block : model.blocks)
    for (const Call& call : block.list.calls)
      if (block.layer == 0 && call.name == name) return call;
  throw Error("no call " + name);
}

std::vector<std::string> hf_names(const ParameterSpec& parameter) {
  std::vector<std::string> names;
  for (const SubTensor& tensor : parameter.sub_tensors) names.push_back(tensor.hf_name);
  return names;
}

std::string peft_name(int64_t expert, const char* matrix, const char* factor) {
  return format("base_model.model.model.layers.0.mlp.experts.{}.{}.lora_{}.weight", expert, matrix, factor);
}

TEST(ExpertAdapters, AreNotMeantByAllLinear) {
  const ModelSpec model = adapted_experts(lora_of_experts({"all-linear"}));
  EXPECT_EQ(model.find_parameter("layers.0.mlp.expert_gate_up.lora_A"), nullptr);
  EXPECT_EQ(model.find_parameter("layers.0.mlp.expert_down.lora_A"), nullptr);
  EXPECT_NE(model.find_parameter("layers.0.attention.qkv.lora_A"), nullptr);
}

TEST(ExpertAdapters, HaveATensorForEachMatrixOfEachExpert) {
  const ModelSpec model = adapted_experts(lora_of_experts());
  const ParameterSpec& a = expert_parameter(model, "expert_gate_up.lora_A");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{6 * 8, 24}));
  const std::vector<std::string> names = hf_names(a);
  ASSERT_EQ(names.size(), 12U);
  EXPECT_EQ(names[0], peft_name(0, "gate_proj", "A"));
  EXPECT_EQ(names[1], peft_name(0, "up_proj", "A"));
  EXPECT_EQ(names[8], peft_name(4, "gate_proj", "A"));
  EXPECT_EQ(a.sub_tensors[8].rows, 4);
  const ParameterSpec& up = expert_parameter(model, "expert_gate_up.lora_B.up");
  EXPECT_EQ(up.shape, (std::vector<int64_t>{6 * 20, 4}));
  EXPECT_EQ(hf_names(up).at(3), peft_name(3, "up_proj", "B"));
  EXPECT_EQ(expert_parameter(model, "expert_down.lora_A").shape, (std::vector<int64_t>{6 * 4, 20}));
  const ParameterSpec& down = expert_parameter(model, "expert_down.lora_B.down");
  EXPECT_EQ(down.shape, (std::vector<int64_t>{6 * 24, 4}));
  EXPECT_EQ(hf_names(down).at(5), peft_name(5, "down_proj", "B"));
  for (const ParameterSpec* parameter : {&a, &up, &down}) EXPECT_EQ(parameter->used_share, 0.5);
}

TEST(ExpertAdapters, AreAddedToTheRowsOfTheirExperts) {
  AdapterConfig adapter = lora_of_experts();
  adapter.patterns = {{.pattern = "gate_proj", .rank = 2, .alpha = 6}};
  const ModelSpec model = adapted_experts(adapter);
  const Call& base = expert_call(model, "expert_gate_up");
  const Call& a = expert_call(model, "expert_gate_up.A");
  EXPECT_TRUE(a.is(kExpertIn));
  EXPECT_EQ(a.operands, base.operands);
  EXPECT_EQ(a.weights.front().shape, (std::vector<int64_t>{6 * (2 + 4), 24}));
  const Call& b = expert_call(model, "expert_gate_up.B");
  EXPECT_TRUE(b.is(kLowRank));
  ASSERT_EQ(b.operands.size(), 3U);
  EXPECT_EQ(b.operands[2], base.operands[1]) << "the experts of each token";
  const auto& [parts, experts] = attributes_of<LowRankAttributes>(b);
  EXPECT_EQ(experts, 6);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].rank_begin, 2);
  EXPECT_EQ(parts[1].column_begin, 20);
  EXPECT_DOUBLE_EQ(parts[0].scale, 6.0 / 2);
  EXPECT_DOUBLE_EQ(parts[1].scale, 8.0 / 4);
  const Call& down = expert_call(model, "expert_down.A");
  EXPECT_TRUE(down.is(kExpertRows));
  EXPECT_DOUBLE_EQ(attributes_of<ExpertRowsAttributes>(down).scale, 2.0);
  EXPECT_TRUE(expert_call(model, "expert_down.B").is(kExpertOut));
  EXPECT_EQ(expert_call(model, "expert_down.sum").operands.back(),
            expert_call(model, "expert_down.B").results.front());
}

TEST(ExpertAdapters, OfOneMatrixLeaveTheOthersAsTheyAre) {
  const ModelSpec model = adapted_experts(lora_of_experts({"up_proj"}));
  const auto& parts = attributes_of<LowRankAttributes>(expert_call(model, "expert_gate_up.B")).parts;
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].column_begin, 20);
  EXPECT_EQ(hf_names(expert_parameter(model, "expert_gate_up.lora_A")).at(1), peft_name(1, "up_proj", "A"));
  EXPECT_EQ(model.find_parameter("layers.0.mlp.expert_down.lora_A"), nullptr);
}

TEST(ExpertAdapters, OfMixtralHaveItsNames) {
  const ModelSpec model = adapted_experts(lora_of_experts({"w2"}), {}, "mixtral");
  EXPECT_EQ(hf_names(expert_parameter(model, "expert_down.lora_A")).at(2),
            "base_model.model.model.layers.0.block_sparse_moe.experts.2.w2.lora_A.weight");
}

TEST(ExpertAdapters, AreOnTheRanksThatHaveTheExperts) {
  const ModelSpec whole = adapted_experts(lora_of_experts());
  std::map<std::string, int64_t> rows;
  for (int rank = 0; rank < 3; ++rank) {
    const ModelSpec part = adapted_experts(lora_of_experts(), {rank, 3});
    for (const UnitSpec& unit : part.units) {
      if (!unit.trainable) continue;
      EXPECT_EQ(unit.mesh, UnitMesh::experts) << unit.name;
      for (const ParameterSpec& parameter : unit.parameters) {
        EXPECT_EQ(hf_names(parameter), hf_names(*whole.find_parameter(parameter.name))) << parameter.name;
        int64_t held = 0;
        for (size_t i = 0; i < parameter.sub_tensors.size(); ++i) {
          held += parameter.sub_tensors[i].rows;
          rows[parameter.sub_tensors[i].hf_name] += parameter.sub_tensors[i].rows;
          EXPECT_EQ(parameter.tensor_shape(i), whole.find_parameter(parameter.name)->tensor_shape(i));
        }
        EXPECT_EQ(held, parameter.shape.at(0)) << parameter.name;
      }
    }
    const ParameterSpec& a = expert_parameter(part, "expert_gate_up.lora_A");
    EXPECT_EQ(a.shape, (std::vector<int64_t>{2 * 8, 24}));
    EXPECT_EQ(a.sub_tensors.at(static_cast<size_t>(4 * rank)).rows, 4) << "the first of its experts";
    EXPECT_EQ(attributes_of<LowRankAttributes>(expert_call(part, "expert_gate_up.B")).experts, 2);
    check_value_types(part);
  }
  check_value_types(whole);
  for (const UnitSpec& unit : whole.units) {
    if (!unit.trainable) continue;
    for (const ParameterSpec& parameter : unit.parameters)
      for (const SubTensor& tensor : parameter.sub_tensors)
        EXPECT_EQ(rows[tensor.hf_name], tensor.rows) << tensor.hf_name;
  }
}

AdapterConfig lora_with_shared_a(Strings targets = {kAllExperts}) {
  AdapterConfig adapter = lora_of_experts(std::move(targets));
  adapter.experts = ExpertAdapters::shared_a;
  return adapter;
}

TEST(ExpertAdapters, WithASharedAHaveOneForEachMatrixAndBForEachExpert) {
  AdapterConfig adapter = lora_with_shared_a();
  adapter.patterns = {{.pattern = "gate_proj", .rank = 2, .alpha = 6}};
  const ModelSpec model = adapted_experts(adapter);
  const ParameterSpec& a = expert_parameter(model, "expert_gate_up.lora_A");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2 + 4, 24}));
  EXPECT_EQ(hf_names(a), (Strings{peft_name(0, "gate_proj", "A"), peft_name(0, "up_proj", "A")}));
  EXPECT_EQ(a.used_share, 1.0) << "every token uses it";
  EXPECT_EQ(expert_parameter(model, "expert_gate_up.lora_B.up").shape, (std::vector<int64_t>{6 * 20, 4}));
  EXPECT_EQ(expert_parameter(model, "expert_down.lora_A").shape, (std::vector<int64_t>{4, 20}));
  std::map<std::string, std::string> copies;
  for (const CopySpec& copy : model.copies) copies[copy.hf_name] = copy.original;
  EXPECT_EQ(copies.size(), static_cast<size_t>(model.layers * 3 * 5));
  EXPECT_EQ(copies[peft_name(4, "up_proj", "A")], peft_name(0, "up_proj", "A"));
  EXPECT_EQ(peft_config(adapter, model, "base")["target_modules"],
            Json({"down_proj", "gate_proj", "up_proj"}));
}

TEST(ExpertAdapters, WithASharedAMultiplyTokensByItAndRowsByB) {
  AdapterConfig adapter = lora_with_shared_a();
  adapter.patterns = {{.pattern = "gate_proj", .rank = 2, .alpha = 6}};
  const ModelSpec model = adapted_experts(adapter);
  const Call& base = expert_call(model, "expert_gate_up");
  const Call& a = expert_call(model, "expert_gate_up.A");
  EXPECT_TRUE(a.is(kLinear));
  EXPECT_EQ(a.operands, std::vector{base.operands.front()});
  const Call& rows = expert_call(model, "expert_gate_up.rows");
  EXPECT_TRUE(rows.is(kTakeRows));
  EXPECT_EQ(rows.operands,
            (std::vector{a.results.front(), base.operands[1], base.operands[2], base.operands[3]}));
  const Call& b = expert_call(model, "expert_gate_up.B");
  EXPECT_EQ(b.operands.front(), rows.results.front());
  EXPECT_EQ(attributes_of<LowRankAttributes>(b).experts, 6);
  EXPECT_EQ(attributes_of<LowRankAttributes>(b).parts.at(1).rank_begin, 2);
  const Call& down = expert_call(model, "expert_down.A");
  EXPECT_TRUE(down.is(kExpertRows));
  EXPECT_EQ(down.operands.size(), 1U) << "no matter whose rows they are";
  EXPECT_EQ(attributes_of<ExpertRowsAttributes>(down).experts, 1);
  EXPECT_DOUBLE_EQ(attributes_of<ExpertRowsAttributes>(down).scale, 2.0);
}

/// Each rank has rows of all ranks for its experts.
TEST(ExpertAdapters, ASharedAIsShardedAndSummedOverAllRanksThatHaveOtherTokens) {
  for (const bool divided : {false, true}) {
    const TensorParallel tensor{.degree = divided ? 2 : 1, .sequence = divided};
    ModelSpec part = model_spec(small_model("qwen3_moe", 8, 4), 64, tensor, {}, {}, {.rank = 1, .degree = 3});
    add_adapters(part, lora_with_shared_a(), {DType::bf16});
    const auto unit = std::ranges::find(part.units, "layers.0.experts.shared", &UnitSpec::name);
    ASSERT_NE(unit, part.units.end());
    EXPECT_TRUE(unit->trainable);
    EXPECT_EQ(unit->mesh, divided ? UnitMesh::slices : UnitMesh::rows);
    ASSERT_EQ(unit->parameters.size(), 2U);
    for (const ParameterSpec& a : unit->parameters) EXPECT_FALSE(a.is_sliced()) << a.name;
    const ParameterSpec& b = expert_parameter(part, "expert_down.lora_B.down");
    EXPECT_EQ(b.shape, (std::vector<int64_t>{2 * 24, 4}));
    check_value_types(part);
    if (!divided) continue;
    unit->mesh = UnitMesh::rows;
    EXPECT_THROW(check_value_types(part), ValueTypeError);
  }
}

TEST(ExpertAdapters, ASharedAWithoutExpertsIsRefused) {
  for (const char* family : {"qwen3_moe", "gpt_oss"})
    EXPECT_CONTAINS(
        message_of<UsageError>([&] { adapted_experts(lora_with_shared_a({"all-linear"}), {}, family); }),
        "adapter.experts = \"shared_a\"", "adapter.targets");
}

AdapterConfig dora_of_experts(Strings targets = {kAllExperts}) {
  AdapterConfig adapter = lora_of_experts(std::move(targets));
  adapter.type = AdapterType::dora;
  return adapter;
}

TEST(ExpertAdapters, OfDoraHaveTheMagnitudesOfEachExpertWhereItIs) {
  const ModelSpec part = adapted_experts(dora_of_experts(), {.rank = 1, .degree = 3});
  const auto unit = std::ranges::find(part.units, "layers.0.experts.magnitudes", &UnitSpec::name);
  ASSERT_NE(unit, part.units.end());
  EXPECT_TRUE(unit->fp32);
  EXPECT_EQ(unit->mesh, UnitMesh::experts);
  ASSERT_EQ(unit->parameters.size(), 3U);
  const ParameterSpec& up = expert_parameter(part, "expert_gate_up.lora_magnitude.up");
  EXPECT_EQ(up.tag, ParameterTag::magnitude);
  EXPECT_EQ(up.shape, std::vector<int64_t>{2 * 20});
  ASSERT_EQ(up.sub_tensors.size(), 6U);
  EXPECT_EQ(up.sub_tensors[3].hf_name,
            "base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_magnitude_vector");
  for (size_t e = 0; e < 6; ++e) {
    EXPECT_EQ(up.sub_tensors[e].rows, e == 2 || e == 3 ? 20 : 0) << e;
    EXPECT_EQ(up.tensor_shape(e), std::vector<int64_t>{20}) << e;
  }
}

TEST(ExpertAdapters, OfDoraScaleTheRowsOfExpertsBeforeTheyAreSummed) {
  for (const ExpertAdapters of_experts : {ExpertAdapters::each, ExpertAdapters::shared_a}) {
    AdapterConfig adapter = dora_of_experts();
    adapter.experts = of_experts;
    const ModelSpec model = adapted_experts(adapter);
    const Call& first = expert_call(model, "expert_gate_up.magnitude");
    EXPECT_EQ(first.operands, (std::vector{expert_call(model, "expert_gate_up.B").results.front(),
                                           expert_call(model, "expert_gate_up").operands[1]}));
    EXPECT_EQ(attributes_of<MagnitudeAttributes>(first).experts, 6);
    EXPECT_EQ(attributes_of<MagnitudeAttributes>(first).parts.at(1).column_begin, 20);
    const Call& rows = expert_call(model, "expert_down");
    EXPECT_TRUE(rows.is(kExpertRows));
    EXPECT_EQ(rows.weights.front().name, "layers.0.mlp.expert_down");
    EXPECT_FALSE(rows.weights.front().trained);
    EXPECT_DOUBLE_EQ(attributes_of<ExpertRowsAttributes>(rows).scale, 1.0);
    EXPECT_DOUBLE_EQ(attributes_of<ExpertRowsAttributes>(expert_call(model, "expert_down.A")).scale, 1.0);
    const Call& b = expert_call(model, "expert_down.B");
    EXPECT_TRUE(b.is(kLowRank));
    EXPECT_EQ(b.operands[1], rows.results.front());
    EXPECT_DOUBLE_EQ(attributes_of<LowRankAttributes>(b).parts.front().scale, 2.0);
    EXPECT_EQ(expert_call(model, "expert_down.magnitude").operands.front(), b.results.front());
    const Call& sum = expert_call(model, "expert_down.sum");
    EXPECT_TRUE(sum.is(kSumRows));
    EXPECT_EQ(sum.operands.front(), expert_call(model, "expert_down.magnitude").results.front());
  }
}

TEST(ExpertAdapters, OfSomeExpertsOrSeveralRanksAreRefused) {
  const auto refusal = [](const AdapterConfig& adapter, const ExpertParallel& experts = {},
                          const std::string& family = "qwen3_moe") {
    return message_of<UsageError>([&] { adapted_experts(adapter, experts, family); });
  };
  const std::string some = refusal(lora_of_experts({".*experts\\.[0-3]\\.up_proj"}));
  EXPECT_CONTAINS(some, "layers.0.mlp.experts.3.up_proj but not model.layers.0.mlp.experts.5.up_proj");
  AdapterConfig adapter = lora_of_experts();
  adapter.patterns = {{.pattern = ".*experts\\.4\\..*", .rank = 2, .alpha = 4}};
  EXPECT_CONTAINS(refusal(adapter), "adapter.patterns: model.layers.0.mlp.experts.4.gate_proj");
  adapter = lora_of_experts();
  adapter.dropout = 0.1;
  EXPECT_CONTAINS(refusal(adapter), "adapter.dropout");
  const std::string parts = refusal(lora_of_experts(), {.rank = 1, .degree = 2, .parts = 2});
  EXPECT_CONTAINS(parts, "expert_tensor_parallel_degree");
  EXPECT_CONTAINS(parts, "experts.0.gate_proj");
  for (const char* target : {".*experts.*", "down_proj", "experts"}) {
    const AdapterConfig named = lora_of_experts({"q_proj", target});
    EXPECT_CONTAINS(refusal(named, {}, "gpt_oss"), "model.layers.0.mlp.experts.");
  }
}

/// All other modules may have them then.
TEST(ExpertAdapters, ThatCannotBeAreNoneIfNothingNamesThem) {
  AdapterConfig adapter = dora_of_experts({"all-linear"});
  adapter.dropout = 0.1;
  for (const char* family : {"qwen3_moe", "gpt_oss"}) EXPECT_NO_THROW(adapted_experts(adapter, {}, family));
}

}  // namespace
}  // namespace stepforge::testing
