// SPDX-License-Identifier: Apache-2.0
// LoRA and DoRA of other trainers become [adapter]; what has no counterpart is listed.
#include "tests/config/converting.h"

namespace stepforge::testing {
namespace {

constexpr const char* kFactory = "model_name_or_path: m\nstage: sft\ndataset: d\ntemplate: llama3\n";

/// All that is set, in one line.
std::string adapter_of(const Config& config) {
  const AdapterConfig& adapter = config.adapter;
  if (!adapter.enabled()) return "none";
  std::string text = format("rank {} alpha {} dropout {} targets {}", adapter.rank, adapter.alpha,
                            adapter.dropout, join(adapter.targets, " "));
  if (adapter.type == AdapterType::dora) text += " dora";
  if (adapter.rslora) text += " rslora";
  if (adapter.b_lr_ratio != 1) text += format(" ratio {}", adapter.b_lr_ratio);
  if (!adapter.also_train.empty()) text += format(" also {}", join(adapter.also_train, " "));
  if (!adapter.from.empty()) text += format(" from {}", adapter.from);
  return text;
}

std::string factory(const std::string& more) {
  return adapter_of(converted(kFactory + more, "a.yaml", "LLaMA-Factory"));
}
std::string axolotl(const std::string& more) {
  return adapter_of(converted("base_model: m\ndatasets:\n  - path: a.jsonl\n    type: alpaca\n" + more,
                              "a.yaml", "Axolotl"));
}
std::string trl(const std::string& more) {
  return adapter_of(
      converted("model_name_or_path: m\ndataset_name: d\nlearning_rate: 1e-4\nmax_length: 64\n" + more,
                "a.yaml", "TRL"));
}
std::string litgpt(const std::string& more) {
  return adapter_of(converted("checkpoint_dir: c\ntrain: {epochs: 1}\n" + more, "a.yaml", "litgpt"));
}

TEST(ConvertAdapter, OfLlamaFactoryHasItsNumbersAndNames) {
  EXPECT_EQ(
      factory(
          "finetuning_type: lora\nlora_rank: 32\nlora_alpha: 48\nlora_dropout: 0.1\nlora_target: q_proj, v_proj\n"
          "use_rslora: true\nloraplus_lr_ratio: 16.0\nadditional_target: embed_tokens,lm_head\n"),
      "rank 32 alpha 48 dropout 0.1 targets q_proj v_proj rslora ratio 16 also embed_tokens lm_head");
  EXPECT_EQ(factory("finetuning_type: lora\nlora_target: q_proj,embed_tokens,lm_head\n"),
            "rank 8 alpha 16 dropout 0 targets q_proj embed_tokens lm_head");
  EXPECT_EQ(factory("finetuning_type: lora\nlora_target: all\n"),
            "rank 8 alpha 16 dropout 0 targets all-linear");
  EXPECT_EQ(factory("lora_rank: 64\n"), "rank 64 alpha 128 dropout 0 targets all-linear")
      << "lora is its default";
  EXPECT_EQ(factory("finetuning_type: full\nlora_rank: 8\nlora_target: all\n"), "none");
  EXPECT_EQ(factory("finetuning_type: lora\nadapter_name_or_path: saves/a\nlora_rank: 4\n"),
            "rank 16 alpha 32 dropout 0 targets all-linear from saves/a")
      << "the folder says the rank";
}

TEST(ConvertAdapter, DoraIsAKindOfAdapter) {
  EXPECT_EQ(factory("finetuning_type: lora\nuse_dora: true\n"),
            "rank 8 alpha 16 dropout 0 targets all-linear dora");
  EXPECT_EQ(factory("finetuning_type: full\nuse_dora: true\n"), "none");
  EXPECT_EQ(factory("finetuning_type: lora\nuse_dora: false\n"),
            "rank 8 alpha 16 dropout 0 targets all-linear");
  EXPECT_EQ(axolotl("adapter: lora\nlora_r: 8\nlora_target_linear: true\npeft_use_dora: true\n"),
            "rank 8 alpha 8 dropout 0 targets all-linear dora");
  EXPECT_EQ(trl("use_peft: true\nlora_dropout: 0\nuse_dora: true\n"),
            "rank 16 alpha 32 dropout 0 targets q_proj v_proj dora");
}

TEST(ConvertAdapter, ThatStartsWithPartsOfTheWeightsKeepsItsStart) {
  const auto init_of = [](const std::string& text, const char* trainer) {
    const AdapterConfig adapter = converted(text, "a.yaml", trainer).adapter;
    return format("{} {}", choice_name(adapter.init), adapter.svd_iterations);
  };
  const std::string ours = kFactory;
  const auto factory_init = [&](const std::string& more) { return init_of(ours + more, "LLaMA-Factory"); };
  EXPECT_EQ(factory_init("pissa_init: true\npissa_iter: 4\npissa_convert: true\n"), "pissa 4");
  EXPECT_EQ(factory_init("pissa_init: true\n"), "pissa 16") << "its default";
  EXPECT_EQ(factory_init("pissa_init: true\npissa_iter: -1\n"), "pissa 0");
  EXPECT_EQ(factory_init("pissa_init: false\npissa_iter: 4\n"), "kaiming 0");
  EXPECT_EQ(factory_init("finetuning_type: full\npissa_init: true\n"), "kaiming 0");
  EXPECT_EQ(factory_init("pissa_init: true\nadapter_name_or_path: saves/a\n"), "kaiming 0")
      << "the folder has its values";
  const auto axolotl_init = [&](const std::string& init) {
    return init_of(
        "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: alpaca\nadapter: lora\nlora_r: 8\n"
        "peft_init_lora_weights: " +
            init + "\n",
        "Axolotl");
  };
  EXPECT_EQ(axolotl_init("pissa"), "pissa 0");
  EXPECT_EQ(axolotl_init("pissa_niter_16"), "pissa 16");
  EXPECT_EQ(axolotl_init("gaussian"), "gaussian 0");
  EXPECT_EQ(axolotl_init("true"), "kaiming 0");
}

TEST(ConvertAdapter, OfLlamaFactorysSecondFilesIsASection) {
  const std::string file =
      "model: m\nmodel_class: llm\ntemplate: qwen3_nothink\ntrain_dataset: data.yaml\nmicro_batch_size: 1\n";
  EXPECT_EQ(adapter_of(converted(
                file + "peft_config:\n  name: lora\n  r: 12\n  lora_alpha: 24\n  target_modules: all\n",
                "a.yaml", "LLaMA-Factory")),
            "rank 12 alpha 24 dropout 0 targets all-linear");
  EXPECT_EQ(adapter_of(converted(file, "a.yaml", "LLaMA-Factory")), "none");
  EXPECT_EQ(refused(file + "peft_config: {name: oft}\n", "a.yaml").size(), 1U);
}

TEST(ConvertAdapter, OfAxolotlJoinsItsTwoKindsOfTargets) {
  EXPECT_EQ(
      axolotl("adapter: lora\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\nlora_target_linear: true\n"
              "lora_target_modules: [lm_head]\npeft_use_rslora: true\nloraplus_lr_ratio: 8\n"
              "lora_modules_to_save: [embed_tokens]\n"),
      "rank 32 alpha 16 dropout 0.05 targets all-linear lm_head rslora ratio 8 also embed_tokens");
  EXPECT_EQ(
      axolotl(
          "adapter: lora\nlora_r: 4\nlora_alpha: 4\nlora_target_modules: 'model.layers.[\\d]+.(q|v)_proj'\n"),
      "rank 4 alpha 4 dropout 0 targets model.layers.[\\d]+.(q|v)_proj")
      << "an expression is one name";
  EXPECT_EQ(axolotl("adapter: lora\nlora_r: 4\n"), "rank 4 alpha 8 dropout 0 targets q_proj v_proj");
  EXPECT_EQ(axolotl("adapter:\nlora_r: 4\nlora_target_linear: true\nload_in_8bit: false\n"), "none");
  EXPECT_EQ(axolotl("adapter: lora\nlora_model_dir: out\nlora_r: 4\nlora_alpha: 4\n"),
            "rank 16 alpha 32 dropout 0 targets all-linear from out");
  EXPECT_EQ(converted("base_model: m\nadapter: lora\nlora_r: 4\npeft_layers_to_transform: [0, 3]\n", "a.yaml",
                      "Axolotl")
                .adapter.layers,
            (std::vector<int64_t>{0, 3}));
}

TEST(ConvertAdapter, OfTrlNeedsItsSwitch) {
  EXPECT_EQ(trl("use_peft: true\n"), "rank 16 alpha 32 dropout 0.05 targets q_proj v_proj");
  EXPECT_EQ(trl("use_peft: true\nlora_r: 8\nlora_alpha: 8\nlora_dropout: 0\nlora_target_modules: all-linear\n"
                "use_rslora: true\nlora_modules_to_save: [lm_head]\n"),
            "rank 8 alpha 8 dropout 0 targets all-linear rslora also lm_head");
  EXPECT_EQ(trl("lora_r: 8\nlora_target_modules: [q_proj]\n"), "none");
}

TEST(ConvertAdapter, OfLitgptNamesModulesByTheirParts) {
  EXPECT_EQ(
      litgpt(
          "lora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\nlora_query: true\nlora_key: true\nlora_value: false\n"
          "lora_projection: true\nlora_mlp: true\nlora_head: false\n"),
      "rank 32 alpha 16 dropout 0.05 targets q_proj k_proj o_proj gate_proj up_proj down_proj");
  EXPECT_EQ(litgpt("lora_r: 8\n"), "rank 8 alpha 16 dropout 0.05 targets q_proj v_proj");
  EXPECT_EQ(litgpt(""), "none");
}

std::string_view frozen_type(const std::string& text, const char* trainer) {
  return choice_name(converted(text, "a.yaml", trainer).model.frozen_dtype);
}

TEST(ConvertAdapter, FourBitsOfFrozenWeightsAreNf4) {
  const std::string ours = kFactory;
  EXPECT_EQ(frozen_type(ours + "finetuning_type: lora\nquantization_bit: 4\nquantization_method: bnb\n",
                        "LLaMA-Factory"),
            "nf4");
  EXPECT_EQ(frozen_type(ours + "finetuning_type: lora\nbf16: true\n", "LLaMA-Factory"), "bf16");
  EXPECT_EQ(frozen_type("base_model: m\nadapter: qlora\nload_in_4bit: true\nlora_r: 8\n", "Axolotl"), "nf4");
  EXPECT_EQ(frozen_type("model_name_or_path: m\nmax_length: 64\nuse_peft: true\nload_in_4bit: true\n", "TRL"),
            "nf4");
  EXPECT_EQ(frozen_type("checkpoint_dir: c\nquantize: bnb.nf4-dq\nlora_r: 8\ntrain: {epochs: 1}\n", "litgpt"),
            "nf4");
  EXPECT_EQ(refused("base_model: m\nload_in_4bit: true\n", "a.yaml").size(), 1U) << "nothing is frozen";
  EXPECT_EQ(refused(ours + "finetuning_type: lora\nquantization_bit: 2\n", "a.yaml").size(), 1U);
  EXPECT_CONTAINS(
      join(lost(ours + "finetuning_type: lora\nquantization_bit: 4\nquantization_type: fp4\n", "a.yaml"),
           "; "),
      "quantization_type", "nf4");
}

bool quantizes_twice(const std::string& text, const char* trainer) {
  return converted(text, "a.yaml", trainer).model.double_quantization;
}

TEST(ConvertAdapter, DoubleQuantizationIsThatOfTheFileOrOfTheOtherTrainersDefault) {
  const std::string ours = std::string(kFactory) + "finetuning_type: lora\n";
  const auto factory_file = [&](const char* more) { return quantizes_twice(ours + more, "LLaMA-Factory"); };
  EXPECT_TRUE(factory_file("quantization_bit: 4\n"));
  EXPECT_TRUE(factory_file("quantization_bit: 4\ndouble_quantization: true\n"));
  EXPECT_FALSE(factory_file("quantization_bit: 4\ndouble_quantization: false\n"));
  EXPECT_FALSE(factory_file("quantization_bit: 8\ndouble_quantization: true\n"));
  EXPECT_FALSE(factory_file("bf16: true\n"));
  const auto axolotl = [](const char* more) {
    return quantizes_twice(std::string("base_model: m\nlora_r: 8\nload_in_4bit: true\n") + more, "Axolotl");
  };
  EXPECT_TRUE(axolotl("adapter: qlora\n"));
  EXPECT_FALSE(axolotl("adapter: lora\n"));
  EXPECT_FALSE(axolotl("adapter: qlora\nbnb_config_kwargs:\n  bnb_4bit_use_double_quant: false\n"));
  const std::string trl = "model_name_or_path: m\nmax_length: 64\nuse_peft: true\nload_in_4bit: true\n";
  EXPECT_FALSE(quantizes_twice(trl, "TRL"));
  EXPECT_TRUE(quantizes_twice(trl + "use_bnb_nested_quant: true\n", "TRL"));
  for (const char* kind : {"bnb.nf4", "bnb.nf4-dq"})
    EXPECT_EQ(
        quantizes_twice(format("checkpoint_dir: c\nquantize: {}\nlora_r: 8\ntrain: {{epochs: 1}}\n", kind),
                        "litgpt"),
        std::string_view(kind).ends_with("dq"));
}

TEST(ConvertAdapter, EightBitsOfFrozenWeightsAreInt8WithAComment) {
  const std::string factory_file = std::string(kFactory) + "finetuning_type: lora\nquantization_bit: 8\n";
  EXPECT_EQ(frozen_type(factory_file, "LLaMA-Factory"), "int8");
  EXPECT_EQ(frozen_type("base_model: m\nadapter: lora\nload_in_8bit: true\nlora_r: 8\n", "Axolotl"), "int8");
  EXPECT_EQ(frozen_type("model_name_or_path: m\nmax_length: 64\nuse_peft: true\nload_in_8bit: true\n", "TRL"),
            "int8");
  EXPECT_EQ(frozen_type("checkpoint_dir: c\nquantize: bnb.int8\nlora_r: 8\ntrain: {epochs: 1}\n", "litgpt"),
            "int8");
  EXPECT_CONTAINS(convert_config(factory_file, "a.yaml").toml, "frozen_dtype = \"int8\"  # LLM.int8");
  EXPECT_EQ(refused("base_model: m\nload_in_8bit: true\n", "a.yaml").size(), 1U) << "nothing is frozen";
}

TEST(ConvertAdapter, WhatTrainsSomethingElseIsRefused) {
  const std::string ours = kFactory;
  EXPECT_EQ(refused(ours + "finetuning_type: oft\n", "a.yaml").size(), 1U);
  EXPECT_EQ(refused(ours + "finetuning_type: lora\nadapter_name_or_path: a,b\n", "a.yaml").size(), 1U);
  EXPECT_EQ(refused("base_model: m\nadapter: llama-adapter\n", "a.yaml").size(), 1U);
  EXPECT_EQ(refused("base_model: m\nadapter: qlora\nlora_r: 8\n", "a.yaml").size(), 1U);
  EXPECT_CONTAINS(
      join(lost("base_model: m\nadapter: lora\nlora_r: 8\npeft_init_lora_weights: loftq\n", "a.yaml"), "; "),
      "peft_init_lora_weights", "pissa");
}

TEST(ConvertBest, EarlyStoppingAndTheBestCheckpointNeedValidation) {
  const std::string file =
      "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: alpaca\nearly_stopping_patience: 3\n"
      "load_best_model_at_end: true\n";
  const Config config =
      converted(file + "val_set_size: 0.1\neval_strategy: steps\neval_steps: 10\n", "a.yaml", "Axolotl");
  EXPECT_EQ(config.training.early_stopping.patience, 3);
  EXPECT_TRUE(config.checkpoint.keep_best);
  const Config without = converted(file, "a.yaml", "Axolotl");
  EXPECT_EQ(without.training.early_stopping.patience, 0);
  EXPECT_FALSE(without.checkpoint.keep_best);
}

}  // namespace
}  // namespace stepforge::testing
