// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapter_biases.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/peft_config.h"
#include "stepforge/modelspec/value_types.h"
#include "tests/catalog/small_adapter.h"
#include "tests/catalog/small_model.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using BiasNames = std::set<std::string>;

AdapterConfig bias_lora(AdapterBias bias, const Strings& targets) {
  AdapterConfig adapter = small_lora(targets);
  adapter.bias = bias;
  return adapter;
}

ModelSpec biased(const AdapterConfig& adapter, const std::string& family = "qwen2",
                 const TensorParallel& tensor = {}) {
  ModelSpec model = model_spec(small_model(family, 8, 4), 64, tensor);
  add_adapters(model, adapter, {DType::bf16});
  return model;
}

/// What is trained of the model itself in its first layer.
BiasNames trained_of_model(const ModelSpec& model) {
  BiasNames names;
  for (const UnitSpec& unit : model.units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const SubTensor& tensor : parameter.sub_tensors)
        if (unit.trainable && tensor.hf_name.starts_with("model.layers.0."))
          names.insert(tensor.hf_name.substr(15));
  return names;
}

const Strings kSome{"q_proj", "v_proj", "down_proj"};
constexpr const char* kPacked = "layers.0.attention.qkv_bias";

TEST(AdapterBiases, OfAllModulesOrOfThoseWithAnAdapterAreTrained) {
  const auto names = [](AdapterBias bias) { return trained_of_model(biased(bias_lora(bias, kSome))); };
  EXPECT_EQ(names(AdapterBias::none), BiasNames{});
  EXPECT_EQ(names(AdapterBias::all),
            (BiasNames{"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}));
  EXPECT_EQ(names(AdapterBias::lora_only), (BiasNames{"self_attn.q_proj.bias", "self_attn.v_proj.bias"}));
}

TEST(AdapterBiases, OfStackedExpertsAndSinksAreNone) {
  const auto names = [](AdapterBias bias) {
    return trained_of_model(biased(bias_lora(bias, {"q_proj", "o_proj"}), "gpt_oss"));
  };
  EXPECT_EQ(names(AdapterBias::all),
            (BiasNames{"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
                       "self_attn.o_proj.bias", "mlp.router.bias"}));
  EXPECT_EQ(names(AdapterBias::lora_only), (BiasNames{"self_attn.q_proj.bias", "self_attn.o_proj.bias"}));
}

const Call& bias_call(const CallList& list) {
  return *std::ranges::find(list.calls, std::string("qkv_bias"), &Call::name);
}

TEST(AdapterBiases, OfWhichSomeAreTrainedAreParametersOfTheirOwn) {
  for (const TensorParallel& tensor :
       {TensorParallel{}, TensorParallel{1, 2, true}, TensorParallel{1, 2, false}}) {
    const ModelSpec whole = model_spec(small_model("qwen2", 8, 4), 64, tensor);
    const ParameterSpec& packed = *whole.find_parameter(kPacked);
    const ModelSpec model = biased(bias_lora(AdapterBias::lora_only, kSome), "qwen2", tensor);
    EXPECT_EQ(model.find_parameter(kPacked), nullptr);
    for (const CallList* list : {&model.blocks.at(1).list, &model.blocks.at(1).generation}) {
      const Call& call = bias_call(*list);
      ASSERT_EQ(call.weights.size(), 3U);
      for (size_t i = 0; i < 3; ++i) {
        const CallWeight& weight = call.weights[i];
        EXPECT_EQ(weight.name, format("{}.{}", kPacked, packed.sub_tensors[i].name));
        EXPECT_EQ(weight.trained, i != 1) << weight.name;
        EXPECT_EQ(weight.division, packed.division());
        const ParameterSpec* part = model.find_parameter(weight.name);
        ASSERT_NE(part, nullptr) << weight.name;
        EXPECT_EQ(part->slice_of(0).offsets, packed.slice_of(i).offsets);
        EXPECT_EQ(part->tensor_shape(0), packed.tensor_shape(i));
        EXPECT_FALSE(part->decays());
      }
    }
    check_value_types(model);
  }
}

TEST(AdapterBiases, OfWhichAllOrNoneAreTrainedStayPacked) {
  for (const auto& [bias, targets] : {std::pair{AdapterBias::none, Strings{"q_proj"}},
                                      {AdapterBias::all, {"q_proj"}},
                                      {AdapterBias::lora_only, {"all-linear"}}}) {
    const ModelSpec model = biased(bias_lora(bias, targets));
    const Call& call = bias_call(model.blocks.at(1).list);
    ASSERT_EQ(call.weights.size(), 1U);
    EXPECT_EQ(call.weights[0].name, kPacked);
    EXPECT_EQ(call.weights[0].trained, bias != AdapterBias::none);
  }
}

TEST(AdapterBiases, ThatAreNotThereAreRefusedUnlessAFolderNamesThem) {
  const auto refusal = [](const AdapterConfig& adapter, const char* family) {
    return message_of<UsageError>([&] { biased(adapter, family); });
  };
  EXPECT_CONTAINS(refusal(bias_lora(AdapterBias::all, {"q_proj"}), "llama"), "adapter.bias = \"all\"",
                  "the model has no biases");
  AdapterConfig adapter = bias_lora(AdapterBias::lora_only, {"up_proj"});
  EXPECT_CONTAINS(refusal(adapter, "qwen2"), "adapter.bias = \"lora_only\"", "no module with an adapter");
  adapter.from = "folder";
  EXPECT_NO_THROW(biased(adapter, "llama")) << "PEFT writes it for any model";
}

TEST(AdapterBiases, AreAFieldOfPeftAndNoModulesToSave) {
  for (const AdapterBias bias : {AdapterBias::none, AdapterBias::all, AdapterBias::lora_only}) {
    const AdapterConfig adapter = bias_lora(bias, kSome);
    const Json json = peft_config(adapter, biased(adapter), "base");
    EXPECT_EQ(json["bias"], std::string(choice_name(bias)));
    EXPECT_TRUE(json["modules_to_save"].is_null()) << json["modules_to_save"];
    EXPECT_EQ(read_peft_config(json, "config").bias, bias);
  }
}

}  // namespace
}  // namespace stepforge::testing
