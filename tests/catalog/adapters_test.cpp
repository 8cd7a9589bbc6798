// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapters.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/modelspec/call_kind.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/modelspec/calls/low_rank.h"
#include "stepforge/modelspec/calls/magnitude.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/small_adapter.h"
#include "tests/catalog/small_model.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

ModelSpec adapted(const AdapterConfig& adapter, const std::string& family = "llama", bool tied = false,
                  const TensorParallel& tensor = {}) {
  ModelSpec model = model_spec(small_model(family, 8, 4, tied), 64, tensor);
  add_adapters(model, adapter, {DType::bf16});
  return model;
}

/// The names of the tensors of trained units.
std::set<std::string> trained(const ModelSpec& model) {
  std::set<std::string> names;
  for (const UnitSpec& unit : model.units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const SubTensor& tensor : parameter.sub_tensors)
        if (unit.trainable) names.insert(tensor.hf_name);
  return names;
}

/// A and B of modules of a layer, by their last names.
std::set<std::string> of_modules(int layer, const Strings& modules) {
  std::set<std::string> names;
  for (const std::string& module : modules) {
    const std::string part =
        module == "q_proj" || module == "k_proj" || module == "v_proj" || module == "o_proj" ? "self_attn"
                                                                                             : "mlp";
    for (const char* factor : {"A", "B"})
      names.insert(
          format("base_model.model.model.layers.{}.{}.{}.lora_{}.weight", layer, part, module, factor));
  }
  return names;
}

std::set<std::string> operator+(std::set<std::string> left, const std::set<std::string>& right) {
  left.insert(right.begin(), right.end());
  return left;
}

const Strings kAll{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

const Call* find_call(const ModelSpec& model, const std::string& name, size_t block = 1) {
  const auto& calls = model.blocks.at(block).list.calls;
  const auto found = std::ranges::find(calls, name, &Call::name);
  return found == calls.end() ? nullptr : &*found;
}

const ParameterSpec& parameter(const ModelSpec& model, const std::string& name) {
  const ParameterSpec* found = model.find_parameter(name);
  if (found == nullptr) throw Error("no parameter " + name);
  return *found;
}

TEST(Adapters, OfAllLinearAreInEachMatrixOfEachLayer) {
  EXPECT_EQ(trained(adapted(small_lora())), of_modules(0, kAll) + of_modules(1, kAll));
}

TEST(Adapters, AreNamedByTheLastPartsOfModulesOrByWholePatterns) {
  EXPECT_EQ(trained(adapted(small_lora({"q_proj", "v_proj"}))),
            of_modules(0, {"q_proj", "v_proj"}) + of_modules(1, {"q_proj", "v_proj"}));
  EXPECT_EQ(trained(adapted(small_lora({"model.layers.1.mlp.up_proj"}))), of_modules(1, {"up_proj"}));
  EXPECT_EQ(trained(adapted(small_lora({".*\\.0\\..*(gate|up)_proj"}))),
            of_modules(0, {"gate_proj", "up_proj"}));
}

TEST(Adapters, MayBeInSomeLayersOnly) {
  AdapterConfig adapter = small_lora();
  adapter.layers = {1};
  EXPECT_EQ(trained(adapted(adapter)), of_modules(1, kAll));
}

TEST(Adapters, EverythingElseIsFrozenInItsOwnType) {
  const ModelSpec model = adapted(small_lora());
  for (const UnitSpec& unit : model.units) {
    EXPECT_EQ(unit.trainable, is_adapter_tensor(unit.parameters.front().sub_tensors.front().hf_name))
        << unit.name;
    EXPECT_EQ(unit.master, unit.trainable ? DType::f32 : DType::bf16) << unit.name;
  }
  for (const BlockSpec& block : model.blocks)
    for (const Call& call : block.list.calls)
      for (const CallWeight& weight : call.weights)
        EXPECT_EQ(weight.trained, weight.name.find(".lora_") != std::string::npos) << weight.name;
}

TEST(Adapters, OfDoraHaveMagnitudesInAUnitThatIsReadInFp32) {
  AdapterConfig adapter = small_lora({"q_proj", "v_proj", "o_proj"});
  adapter.type = AdapterType::dora;
  const ModelSpec model = adapted(adapter, "llama", false, {1, 2, true});
  std::set<std::string> names;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const bool magnitude = parameter.tag == ParameterTag::magnitude;
      EXPECT_EQ(magnitude, unit.fp32) << parameter.name;
      if (magnitude) names.insert(parameter.sub_tensors.front().hf_name);
      if (magnitude) EXPECT_FALSE(parameter.decays());
    }
  }
  EXPECT_EQ(names.size(), 6U);
  EXPECT_TRUE(names.contains("base_model.model.model.layers.1.self_attn.v_proj.lora_magnitude_vector"));
  const ParameterSpec& v = parameter(model, "layers.0.attention.qkv.lora_magnitude.v");
  EXPECT_EQ(v.shape, (std::vector<int64_t>{20}));
  EXPECT_EQ(v.tensor_shape(0), (std::vector<int64_t>{40}));
  EXPECT_EQ(parameter(model, "layers.0.attention.out.lora_magnitude.weight").shape,
            (std::vector<int64_t>{24}));
  EXPECT_FALSE(
      std::any_cast<const MagnitudeAttributes&>(find_call(model, "qkv.magnitude")->attributes).divided);
  EXPECT_TRUE(
      std::any_cast<const MagnitudeAttributes&>(find_call(model, "out.magnitude")->attributes).divided);
  check_value_types(model);
}

TEST(Adapters, HaveTheRankAndScaleOfTheFirstPatternThatMatches) {
  AdapterConfig adapter = small_lora();
  adapter.patterns = {{.pattern = "k_proj", .rank = 2, .alpha = 6}, {.pattern = ".*self_attn.*", .rank = 3}};
  const ModelSpec model = adapted(adapter);
  EXPECT_EQ(parameter(model, "layers.0.attention.qkv.lora_A").shape, (std::vector<int64_t>{3 + 2 + 3, 24}));
  EXPECT_EQ(parameter(model, "layers.0.attention.qkv.lora_B.k").shape, (std::vector<int64_t>{40, 2}));
  const auto& parts = std::any_cast<const LowRankAttributes&>(find_call(model, "qkv.B")->attributes).parts;
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[1].rank_begin, 3);
  EXPECT_EQ(parts[1].column_begin, 80);
  EXPECT_DOUBLE_EQ(parts[0].scale, 8.0 / 3);
  EXPECT_DOUBLE_EQ(parts[1].scale, 6.0 / 2);
  EXPECT_EQ(parameter(model, "layers.0.mlp.down.lora_B.weight").shape, (std::vector<int64_t>{24, 4}));
}

TEST(Adapters, OfRsLoraDivideByTheSquareRootOfTheRank) {
  AdapterConfig adapter = small_lora();
  adapter.rslora = true;
  const Call* call = find_call(adapted(adapter), "down.B");
  ASSERT_NE(call, nullptr);
  EXPECT_DOUBLE_EQ(std::any_cast<const LowRankAttributes&>(find_call(adapted(adapter), "down.B")->attributes)
                       .parts[0]
                       .scale,
                   8.0 / 2);
}

TEST(Adapters, OfSomeTensorsOfAPackedMatrixLeaveTheOthersAsTheyAre) {
  const ModelSpec model = adapted(small_lora({"v_proj"}));
  const auto& parts = std::any_cast<const LowRankAttributes&>(find_call(model, "qkv.B")->attributes).parts;
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].column_begin, 80 + 40);
  EXPECT_EQ(find_call(model, "out.B"), nullptr);
}

TEST(Adapters, AreDividedLikeTheRowsOrColumnsOfTheirMatrix) {
  const ModelSpec model = adapted(small_lora(), "llama", false, {1, 2, true});
  EXPECT_EQ(parameter(model, "layers.0.attention.qkv.lora_A").division(), Division::whole);
  EXPECT_EQ(parameter(model, "layers.0.attention.qkv.lora_B.q").division(), Division::rows);
  EXPECT_EQ(parameter(model, "layers.0.attention.out.lora_A").division(), Division::columns);
  EXPECT_EQ(parameter(model, "layers.0.attention.out.lora_B.weight").division(), Division::whole);
  EXPECT_EQ(parameter(model, "layers.0.attention.qkv.lora_B.q").slice_of(0).offsets,
            (std::vector<int64_t>{40, 0}));
  EXPECT_EQ(parameter(model, "layers.0.attention.out.lora_A").slice_of(0).offsets,
            (std::vector<int64_t>{0, 40}));
  EXPECT_TRUE(find_call(model, "qkv.A")->sums_weight_gradients);
  EXPECT_FALSE(find_call(model, "qkv.B")->sums_weight_gradients);
  EXPECT_TRUE(find_call(model, "out.B")->sums_weight_gradients) << "each rank has other tokens";
}

const std::string kEmbedding = "base_model.model.model.embed_tokens.lora_embedding_";
const std::string kHead = "base_model.model.lm_head.lora_";

TEST(Adapters, OfEmbeddingAndHeadAreThereIfTheyAreNamed) {
  for (const bool tied : {false, true}) {
    const auto names = [&](const Strings& targets) {
      return trained(adapted(small_lora(targets), "llama", tied));
    };
    const std::set<std::string> of_embedding{kEmbedding + "A", kEmbedding + "B"};
    const std::set<std::string> of_head{kHead + "A.weight", kHead + "B.weight"};
    EXPECT_EQ(names({"embed_tokens"}), of_embedding) << tied;
    EXPECT_EQ(names({"lm_head"}), of_head) << tied;
    EXPECT_EQ(names({"all-linear", "embed_tokens", "lm_head"}),
              of_modules(0, kAll) + of_modules(1, kAll) + of_embedding + of_head)
        << tied;
  }
}

TEST(Adapters, OfTheEmbeddingAreARowOfAForEachTokenTimesB) {
  const ModelSpec model = adapted(small_lora({"embed_tokens"}), "gemma2");
  const Call* rows = find_call(model, "embedding.A", 0);
  const Call* sum = find_call(model, "embedding.B", 0);
  ASSERT_TRUE(rows != nullptr && sum != nullptr);
  EXPECT_EQ(std::any_cast<const LookupAttributes&>(rows->attributes).factor,
            std::any_cast<const LookupAttributes&>(find_call(model, "embedding", 0)->attributes).factor)
      << "what a family multiplies rows by";
  EXPECT_EQ(std::any_cast<const LowRankAttributes&>(sum->attributes).parts.at(0).scale, 2.0);
  const ParameterSpec& a = parameter(model, "embedding.weight.lora_A");
  const ParameterSpec& b = parameter(model, "embedding.weight.lora_B.weight");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{model.vocab_size, 4}));
  EXPECT_EQ(b.shape, (std::vector<int64_t>{model.width, 4}));
  EXPECT_EQ(a.sub_tensors[0].init.kind, Initializer::Kind::zeros);
  EXPECT_EQ(b.sub_tensors[0].init.kind, Initializer::Kind::normal) << "as PEFT begins";
  EXPECT_EQ(b.sub_tensors[0].init.std, 1.0);
}

TEST(Adapters, OfTheHeadAreASecondTermOfItsLogits) {
  const ModelSpec model = adapted(small_lora({"lm_head"}), "llama", /*tied=*/true);
  const Call& loss = model.blocks.back().list.calls.back();
  ASSERT_TRUE(loss.is(kLoss));
  ASSERT_EQ(loss.weights.size(), 2U);
  EXPECT_EQ(loss.weights[0].name, "embedding.weight");
  EXPECT_FALSE(loss.weights[0].trained);
  EXPECT_EQ(loss.weights[1].name, "head.weight.lora_B.weight");
  EXPECT_EQ(loss.weights[1].shape, (std::vector<int64_t>{model.vocab_size, 4}));
  EXPECT_EQ(std::any_cast<const LossAttributes&>(loss.attributes).adapter_scale, 2.0);
  EXPECT_EQ(find_call(model, "embedding.A", 0), nullptr) << "the embedding is as it was";
}

TEST(Adapters, OfEmbeddingAndHeadAreDividedLikeTheVocabulary) {
  for (const bool tied : {false, true}) {
    for (const TensorParallel& tensor : {TensorParallel{1, 2, true}, TensorParallel{1, 2, false}}) {
      const ModelSpec model =
          adapted(small_lora({"all-linear", "embed_tokens", "lm_head"}), "llama", tied, tensor);
      check_value_types(model);
      const ParameterSpec& table = parameter(model, "embedding.weight");
      for (const char* name : {"embedding.weight.lora_A", "head.weight.lora_B.weight"}) {
        const ParameterSpec& divided = parameter(model, name);
        EXPECT_EQ(divided.division(), Division::rows) << name;
        EXPECT_EQ(divided.slice_of(0).offsets, (std::vector<int64_t>{table.slice_of(0).offsets[0], 0}));
        EXPECT_EQ(divided.tensor_shape(0), (std::vector<int64_t>{model.vocab_size, 4}));
      }
      EXPECT_EQ(parameter(model, "embedding.weight.lora_B.weight").division(), Division::whole);
      EXPECT_EQ(parameter(model, "head.weight.lora_A").division(), Division::whole);
      EXPECT_NE(find_call(model, "leave.A", 0), nullptr) << "rows of A are summed before B";
      EXPECT_EQ(find_call(model, "embedding.B", 0)->sums_weight_gradients, tensor.sequence);
      EXPECT_TRUE(find_call(model, "loss.A", model.blocks.size() - 1)->sums_weight_gradients);
    }
  }
}

TEST(Adapters, OfEmbeddingAndHeadAreRefusedWhereTheyWouldMeanSomethingElse) {
  const auto refusal = [](AdapterConfig adapter, bool tied = false) {
    return message_of<UsageError>([&] { adapted(adapter, "llama", tied); });
  };
  for (const char* module : {"embed_tokens", "lm_head"}) {
    AdapterConfig adapter = small_lora({module});
    adapter.type = AdapterType::dora;
    EXPECT_CONTAINS(refusal(adapter), module, "dora", "adapter.type");
    adapter = small_lora({"q_proj", module});
    adapter.init = AdapterInit::pissa;
    EXPECT_CONTAINS(refusal(adapter), module, "pissa");
    adapter.init = AdapterInit::kaiming;
    adapter.also_train = {module};
    EXPECT_CONTAINS(refusal(adapter), "adapter.also_train names", module);
    adapter.also_train = {"embed_tokens"};
    EXPECT_CONTAINS(refusal(adapter, /*tied=*/true), "adapter.also_train names", "embed_tokens");
    adapter = small_lora({"q_proj", module});
    adapter.layers = {1};
    EXPECT_CONTAINS(refusal(adapter), "matches none", module);
  }
  AdapterConfig unread = small_lora({"embed_tokens"});
  unread.dropout = 0.5;
  EXPECT_CONTAINS(refusal(unread), "adapter.dropout", "embedding");
  unread = small_lora({"embed_tokens"});
  unread.b_lr_ratio = 4;
  EXPECT_CONTAINS(refusal(unread), "adapter.b_lr_ratio");
}

TEST(Adapters, OfTheHeadHaveDropoutAndThoseOfTheEmbeddingNone) {
  AdapterConfig adapter = small_lora({"embed_tokens", "lm_head"});
  adapter.dropout = 0.5;
  const ModelSpec model = adapted(adapter);
  const auto dropouts = [](const BlockSpec& block) {
    return std::ranges::count_if(block.list.calls, [](const Call& call) { return call.is(kDropout); });
  };
  EXPECT_EQ(dropouts(model.blocks.front()), 0) << "as in PEFT";
  EXPECT_EQ(dropouts(model.blocks.back()), 1);
}

TEST(Adapters, MayTrainModulesOfTheModelToo) {
  AdapterConfig adapter = small_lora({"q_proj"});
  adapter.also_train = {"lm_head", "model.norm", "embed_tokens"};
  const std::set<std::string> of_model{"lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"};
  EXPECT_EQ(trained(adapted(adapter)), of_modules(0, {"q_proj"}) + of_modules(1, {"q_proj"}) + of_model);
}

TEST(Adapters, HaveASiteOfDropoutForEachMatrix) {
  AdapterConfig adapter = small_lora();
  adapter.dropout = 0.1;
  const ModelSpec model = adapted(adapter);
  std::set<uint64_t> sites;
  int count = 0;
  for (const BlockSpec& block : model.blocks)
    for (const Call& call : block.list.calls)
      if (call.is(kDropout)) {
        sites.insert(std::any_cast<const DropoutAttributes&>(call.attributes).site);
        ++count;
        EXPECT_TRUE(call.recompute) << "nothing is kept for it";
      }
  EXPECT_EQ(count, 8);
  EXPECT_EQ(sites.size(), 8U);
}

TEST(Adapters, DropTheChannelsThatTheirRankHas) {
  AdapterConfig adapter = small_lora();
  adapter.dropout = 0.1;
  const ModelSpec first = adapted(adapter, "llama", false, {0, 2, true});
  const ModelSpec second = adapted(adapter, "llama", false, {1, 2, true});
  const auto channel = [](const ModelSpec& model, const std::string& call) {
    return std::any_cast<const DropoutAttributes&>(find_call(model, call)->attributes).channel;
  };
  for (const auto& [matrix, name] :
       {std::pair("out", "layers.0.attention.out"), {"down", "layers.0.mlp.down"}}) {
    const std::string call = format("{}.dropout", matrix);
    EXPECT_EQ(channel(first, call), 0);
    EXPECT_EQ(channel(second, call), parameter(first, name).shape.at(1));
  }
  for (const char* call : {"qkv.dropout", "gate_up.dropout"}) EXPECT_EQ(channel(second, call), 0);
  check_value_types(second);
}

TEST(Adapters, OfNamesThatAreNotThereAreRefusedWithThoseThatAre) {
  const auto refusal = [](const AdapterConfig& adapter, bool tied = false) {
    return message_of<UsageError>([&] { adapted(adapter, "llama", tied); });
  };
  EXPECT_CONTAINS(refusal(small_lora({"q_proj", "c_attn"})), "adapter.targets: \"c_attn\" matches none");
  EXPECT_CONTAINS(refusal(small_lora({"c_attn"})), "q_proj");
  EXPECT_CONTAINS(refusal(small_lora({"_proj"})), "matches none");
  EXPECT_CONTAINS(refusal(small_lora({"(q_proj"})), "regular expression");
  AdapterConfig adapter = small_lora();
  adapter.patterns = {{.pattern = "wq", .rank = 2}};
  EXPECT_CONTAINS(refusal(adapter), "adapter.patterns: \"wq\"");
  adapter = small_lora();
  adapter.layers = {0, 2};
  EXPECT_CONTAINS(refusal(adapter), "adapter.layers: 2");
  adapter = small_lora();
  adapter.also_train = {"lm_head"};
  EXPECT_CONTAINS(refusal(adapter, /*tied=*/true), "adapter.also_train: \"lm_head\"");
  adapter.also_train = {"q_proj"};
  EXPECT_CONTAINS(refusal(adapter), "model.layers.0.self_attn.q_proj but not");
}

}  // namespace
}  // namespace stepforge::testing
