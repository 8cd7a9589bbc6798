// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/expert_layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/modelspec/call_cost.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/small_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr ExpertDims kExpertDims{.width = 32, .hidden = 12, .experts = 6, .chosen = 2};

LayerSpec expert_layer_of(const ExpertDims& dims, const ExpertNames& names) {
  return expert_layer("layers.3.mlp", "model.layers.3.", dims, names, 0.01, false,
                      {.layer = 3, .experts = true}, {.options = {.chosen = dims.chosen}});
}

const ParameterSpec& parameter_of(const LayerSpec& layer, const std::string& name) {
  for (const ParameterSpec& parameter : layer.parameters)
    if (parameter.name == "layers.3.mlp." + name) return parameter;
  throw Error("no parameter " + name);
}

TEST(ExpertLayer, EachExpertHasSubTensorsOfItsOwn) {
  const LayerSpec layer = expert_layer_of(kExpertDims, qwen_expert_names());
  const ParameterSpec& gate_up = parameter_of(layer, "expert_gate_up");
  EXPECT_EQ(gate_up.shape, (std::vector<int64_t>{6 * 2 * 12, 32}));
  ASSERT_EQ(gate_up.sub_tensors.size(), 12U);
  EXPECT_EQ(gate_up.sub_tensors[8].name, "4.gate");
  EXPECT_EQ(gate_up.sub_tensors[8].hf_name, "model.layers.3.mlp.experts.4.gate_proj.weight");
  EXPECT_EQ(gate_up.sub_tensors[9].hf_name, "model.layers.3.mlp.experts.4.up_proj.weight");
  const ParameterSpec& down = parameter_of(layer, "expert_down");
  EXPECT_EQ(down.shape, (std::vector<int64_t>{6 * 32, 12}));
  EXPECT_EQ(down.sub_tensors[5].hf_name, "model.layers.3.mlp.experts.5.down_proj.weight");
  EXPECT_EQ(parameter_of(layer, "router").shape, (std::vector<int64_t>{6, 32}));
}

TEST(ExpertLayer, RowsOfSubTensorsAddUpAndNamesAreUnique) {
  ExpertDims dims = kExpertDims;
  dims.shared_hidden = 20;
  dims.shared_gate = true;
  const LayerSpec layer = expert_layer_of(dims, qwen_expert_names());
  std::set<std::string> names;
  for (const ParameterSpec& parameter : layer.parameters) {
    int64_t rows = 0;
    for (const SubTensor& part : parameter.sub_tensors) {
      rows += part.rows;
      EXPECT_TRUE(names.insert(part.hf_name).second) << part.hf_name;
    }
    EXPECT_EQ(rows, parameter.shape.at(0)) << parameter.name;
  }
  EXPECT_TRUE(names.count("model.layers.3.mlp.shared_expert_gate.weight") == 1);
  EXPECT_TRUE(names.count("model.layers.3.mlp.shared_expert.up_proj.weight") == 1);
}

TEST(ExpertLayer, ARankKnowsTheNamesOfAllExpertsAndHoldsItsOwn) {
  const ModelConfig model = small_model("qwen3_moe", 8, 4);
  const ModelSpec whole = model_spec(model);
  std::map<std::string, int64_t> rows;
  for (int rank = 0; rank < 3; ++rank) {
    const ModelSpec part = model_spec(model, 0, {}, {}, {}, {rank, 3});
    const UnitSpec& unit = part.units.at(2);
    EXPECT_EQ(unit.name, "layers.0.experts");
    EXPECT_EQ(unit.mesh, UnitMesh::experts);
    EXPECT_EQ(part.blocks.at(1).units, (std::vector<int>{1}));
    EXPECT_EQ(part.blocks.at(2).name, "layers.0.experts");
    EXPECT_EQ(part.blocks.at(2).units, (std::vector<int>{2}));
    const ParameterSpec& down = unit.parameters.at(1);
    EXPECT_EQ(down.shape, (std::vector<int64_t>{2 * 24, 20}));
    for (size_t i = 0; i < down.sub_tensors.size(); ++i) {
      EXPECT_EQ(down.tensor_shape(i), (std::vector<int64_t>{24, 20}));
      EXPECT_EQ(down.sub_tensors[i].rows, static_cast<int64_t>(i) / 2 == rank ? 24 : 0);
      rows[down.sub_tensors[i].hf_name] += down.sub_tensors[i].rows;
    }
  }
  EXPECT_EQ(rows.size(), 6U);
  for (const auto& [name, all] : rows) EXPECT_EQ(all, 24) << name;
  int64_t elements = 0;
  for (int rank = 0; rank < 3; ++rank)
    elements += model_spec(model, 0, {}, {}, {}, {rank, 3}).units.at(2).elements();
  EXPECT_EQ(elements, whole.find_parameter("layers.0.mlp.expert_gate_up")->elements() +
                          whole.find_parameter("layers.0.mlp.expert_down")->elements());
}

TEST(ExpertLayer, PartsOfAnExpertAreItsHiddenUnitsOnNeighbouringRanks) {
  const ModelConfig model = small_model("qwen3_moe", 8, 4);
  constexpr int64_t kHidden = 20;
  std::map<std::string, std::vector<int64_t>> found;  // of each tensor the first hidden unit of each part
  for (int rank = 0; rank < 6; ++rank) {
    const ModelSpec part =
        model_spec(model, 0, {rank % 3, 3, true}, {}, TensorPlan({{"attention", TensorStyle::replicate}}),
                   {rank, 6, false, 3});
    const UnitSpec& unit = part.units.at(3);
    ASSERT_EQ(unit.name, "layers.0.experts");
    const ShardRange units{kHidden * (rank % 3) / 3, kHidden * (rank % 3 + 1) / 3};
    EXPECT_EQ(unit.parameters.at(0).shape, (std::vector<int64_t>{3 * 2 * units.size(), 24}));
    EXPECT_EQ(unit.parameters.at(1).shape, (std::vector<int64_t>{3 * 24, units.size()}));
    for (size_t p = 0; p < 2; ++p) {
      const ParameterSpec& parameter = unit.parameters[p];
      for (size_t i = 0; i < parameter.sub_tensors.size(); ++i) {
        EXPECT_EQ(parameter.tensor_shape(i),
                  p == 0 ? (std::vector<int64_t>{kHidden, 24}) : (std::vector<int64_t>{24, kHidden}));
        if (parameter.sub_tensors[i].rows == 0) continue;
        EXPECT_EQ(parameter.slice_of(i).sizes.at(p), units.size());
        found[parameter.sub_tensors[i].hf_name].push_back(parameter.slice_of(i).offsets.at(p));
      }
    }
  }
  EXPECT_EQ(found.size(), 18U);
  for (const auto& [name, begins] : found) EXPECT_EQ(begins, (std::vector<int64_t>{0, 6, 13})) << name;
}

/// Of experts with biases: also each column of the biases of results, which are added up over the parts of an expert.
TEST(ExpertLayer, EachElementOfTensorsOfAllExpertsIsOnOneRank) {
  const ModelConfig model = small_model("gpt_oss", 12, 6);
  const ModelSpec whole = model_spec(model);
  for (const int parts : {1, 2, 3}) {
    std::map<std::string, std::vector<TensorSlice>> found;
    for (int rank = 0; rank < 6; ++rank) {
      const ModelSpec part =
          model_spec(model, 0, {rank % parts, parts, true}, {}, {}, {rank, 6, false, parts});
      for (const UnitSpec& unit : part.units)
        for (const ParameterSpec& parameter : unit.parameters) {
          EXPECT_EQ(parameter.name.find(".expert_") != std::string::npos, unit.mesh == UnitMesh::experts);
          if (unit.mesh != UnitMesh::experts) continue;
          EXPECT_EQ(parameter.tensor_shape(0), whole.find_parameter(parameter.name)->shape) << parameter.name;
          found[parameter.sub_tensors.at(0).hf_name].push_back(parameter.slice_of(0));
        }
    }
    EXPECT_EQ(found.size(), 8U);
    for (const UnitSpec& unit : whole.units)
      for (const ParameterSpec& parameter : unit.parameters) {
        const std::vector<TensorSlice> slices = found[parameter.sub_tensors.at(0).hf_name];
        int64_t elements = 0;
        for (size_t i = 0; i < slices.size(); ++i) {
          elements += slices[i].elements();
          for (size_t j = 0; j < i; ++j) EXPECT_FALSE(intersection(slices[i], slices[j])) << parameter.name;
        }
        EXPECT_EQ(elements, slices.empty() ? 0 : parameter.elements()) << parameter.name;
      }
  }
}

TEST(ExpertLayer, CostsOfAllRowsAreThoseOfTheRowsThatCanCome) {
  const CostContext context{.tokens = 40, .document_length = 40};
  const auto cost = [&](const ExpertDims& dims, const ExpertParallel& parallel) {
    const ExpertParts parts = expert_parts("mlp", "", dims, qwen_expert_names(), 0.02, false,
                                           {.experts = true}, {.options = {.chosen = dims.chosen}}, parallel);
    BlockSpec block{.name = "experts", .list = parts.experts.list};
    block.inputs = {{.name = "rows",
                     .width = dims.width,
                     .dispatched = parallel.rows_per_token(dims.experts, dims.chosen)}};
    return block_cost(block, context);
  };
  const BlockCost even = cost(kExpertDims, {0, 3});
  const BlockCost most = cost(kExpertDims, {0, 3, true});
  // 2 of 6 experts per token, 2 on each rank: all 2 rows of all tokens of 3 ranks. Of a row gate and up and its places are
  // saved; itself and its weight are inputs of the block.
  EXPECT_EQ(most.saved_bytes - even.saved_bytes, 40 * (3 - 1) * 2 * 4 * (2 * 12 + 2));
  EXPECT_GT(most.backward_peak_bytes, even.backward_peak_bytes);
  // With one expert on each rank one row of each token can come.
  EXPECT_EQ(cost(kExpertDims, {0, 6, true}).saved_bytes - cost(kExpertDims, {0, 6}).saved_bytes,
            40 * (6 - 2) * 4 * (2 * 12 + 2));
}

TEST(ExpertLayer, TheBlocksOfALayerPassWhatTheNextOnesTake) {
  const ModelConfig model = small_model("qwen2_moe", 8, 4);
  const ModelSpec part = model_spec(model, 0, {}, {}, {}, {0, 3});
  const auto names = [](const std::vector<BundleEntry>& entries) {
    std::vector<std::string> found;
    for (const BundleEntry& entry : entries) found.push_back(entry.name);
    return join(found, " ");
  };
  std::vector<std::string> blocks;
  for (const BlockSpec& block : part.blocks)
    if (block.layer == 0)
      blocks.push_back(format("{}: {} -> {}", block.name, names(block.takes()), names(block.makes())));
  EXPECT_EQ(blocks, (std::vector<std::string>{"layers.0: hidden -> hidden tokens weights experts",
                                              "layers.0.shared: tokens -> shared gate",
                                              "layers.0.experts: tokens weights experts -> combined",
                                              "layers.0.join: hidden combined shared gate -> hidden"}));
  // What backward of the router reads of what it passes on.
  EXPECT_EQ(kept_outputs(part.blocks.at(1)), (std::vector<std::string>{"hidden", "tokens", "experts"}));
  // As many rows are expected as a rank sends; all of them may come.
  const auto rows = [&](bool all) {
    return model_spec(model, 0, {}, {}, {}, {0, 3, all}).blocks.at(3).inputs.front().dispatched;
  };
  EXPECT_EQ(rows(false), model.experts_per_token);
  EXPECT_EQ(rows(true), 3 * std::min<int64_t>(model.experts_per_token, model.n_experts / 3));
}

TEST(ExpertLayer, DegreesThatDoNotFitAreRefused) {
  const auto message = [](const std::string& family, const TensorParallel& tensor, int64_t ranks) {
    return message_of<UsageError>(
        [&] { model_spec(small_model(family, 8, 4), 0, tensor, {}, {}, {0, static_cast<int>(ranks)}); });
  };
  EXPECT_CONTAINS(message("qwen3_moe", {}, 4), "model.n_experts = 6: the degree must divide it");
  EXPECT_CONTAINS(message("llama", {}, 2), "models of the family \"llama\" have no experts");
  EXPECT_CONTAINS(message("qwen3_moe", {0, 2}, 2), "parallelism.tensor_parallel_degree = 2");
}

TEST(ExpertLayer, NamesAreThoseOfEachFamily) {
  const LayerSpec mixtral = expert_layer_of(kExpertDims, mixtral_expert_names());
  EXPECT_EQ(parameter_of(mixtral, "router").sub_tensors.at(0).hf_name,
            "model.layers.3.block_sparse_moe.gate.weight");
  EXPECT_EQ(parameter_of(mixtral, "expert_gate_up").sub_tensors.at(1).hf_name,
            "model.layers.3.block_sparse_moe.experts.0.w3.weight");
  EXPECT_EQ(parameter_of(mixtral, "expert_down").sub_tensors.at(0).hf_name,
            "model.layers.3.block_sparse_moe.experts.0.w2.weight");
  ExpertDims shared = kExpertDims;
  shared.shared_hidden = 20;
  const LayerSpec deepseek = expert_layer_of(shared, deepseek_expert_names());
  EXPECT_EQ(parameter_of(deepseek, "shared_down").sub_tensors.at(0).hf_name,
            "model.layers.3.mlp.shared_experts.down_proj.weight");
  const ParameterSpec correction =
      router_correction("layers.3.mlp", "model.layers.3.", 6, deepseek_expert_names());
  EXPECT_EQ(correction.sub_tensors.at(0).hf_name, "model.layers.3.mlp.gate.e_score_correction_bias");
  EXPECT_FALSE(correction.decays());
}

TEST(ExpertLayer, RefusesWhatAFamilyHasNoNameFor) {
  ExpertDims dims = kExpertDims;
  dims.shared_hidden = 20;
  EXPECT_THROW(expert_layer_of(dims, mixtral_expert_names()), Error);
  dims.shared_gate = true;
  EXPECT_THROW(expert_layer_of(dims, deepseek_expert_names()), Error);
  EXPECT_THROW(router_correction("", "", 6, qwen_expert_names()), Error);
}

/// The FLOPs of the experts that a token takes, not of all.
TEST(ExpertLayer, FlopsAreThoseOfTheChosenExpertsTheRouterAndTheSharedExpert) {
  ExpertDims dims = kExpertDims;
  dims.shared_hidden = 20;
  dims.shared_gate = true;
  const CostContext context{.tokens = 10, .document_length = 10};
  const BlockCost cost = list_cost(expert_layer_of(dims, qwen_expert_names()).list, context);
  const double experts = 2 * 3 * 2.0 * 32 * 12;
  const double shared = 3 * 2.0 * 32 * 20;
  const double router = 2.0 * 32 * 6 + 2.0 * 32;
  EXPECT_DOUBLE_EQ(cost.forward_flops, 10 * (experts + shared + router));
  EXPECT_DOUBLE_EQ(cost.backward_flops, 2 * cost.forward_flops);
  EXPECT_DOUBLE_EQ(cost.backward_weight_flops, cost.forward_flops);
}

/// More experts of the same size cost no more memory, but for the logits of the router.
TEST(ExpertLayer, SavedBytesDependOnTheChosenExpertsOnly) {
  ExpertDims many = kExpertDims;
  many.experts = 60;
  const CostContext context{.tokens = 10, .document_length = 10};
  const auto saved = [&](const ExpertDims& dims) {
    return list_cost(expert_layer_of(dims, qwen_expert_names()).list, context).saved_bytes;
  };
  EXPECT_EQ(saved(many) - saved(kExpertDims), 10 * 4 * 54);
}

TEST(ExpertLayer, EveryParameterIsUsedByACall) {
  ExpertDims dims = kExpertDims;
  dims.shared_hidden = 20;
  const LayerSpec layer = expert_layer_of(dims, qwen_expert_names());
  std::set<std::string> used;
  for (const Call& call : layer.list.calls)
    for (const CallWeight& weight : call.weights) used.insert(weight.name);
  for (const ParameterSpec& parameter : layer.parameters) EXPECT_EQ(used.count(parameter.name), 1U);
}

/// The last one, which the region before it feeds.
void erase_region(CallList& list, const std::string& region) {
  std::erase_if(list.calls, [&](const Call& call) { return call.region == region; });
  list.outputs = {list.calls.back().results.front()};
}

/// Every rank of data or context parallelism has the whole layer and other tokens.
TEST(ExpertLayer, FitsTheRulesOfTypesInsideAModel) {
  ExpertDims dims = kExpertDims;
  dims.width = 24;
  dims.shared_hidden = 20;
  dims.shared_gate = true;
  for (const ContextParallel& context : {ContextParallel{}, ContextParallel{3, ContextMethod::ring}}) {
    ModelSpec model = model_spec(small_model("llama", 8, 4), 64, {}, context);
    LayerSpec layer = expert_layer_of(dims, qwen_expert_names());
    std::vector<ParameterSpec>& parameters = model.units.at(1).parameters;
    std::erase_if(parameters, [](const ParameterSpec& p) { return p.name.starts_with("layers.0.mlp."); });
    parameters.insert(parameters.end(), layer.parameters.begin(), layer.parameters.end());
    BlockSpec& block = model.blocks.at(1);
    erase_region(block.list, "mlp");
    block.list = joined(block.list, layer.list);
    EXPECT_NO_THROW(check_value_types(model));
    // And a weight that no call uses is found.
    std::ranges::find(block.list.calls, "mlp.route", &Call::full_name)->weights.clear();
    EXPECT_THROW(check_value_types(model), ValueTypeError);
  }
}

}  // namespace
}  // namespace stepforge::testing
