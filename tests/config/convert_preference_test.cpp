// SPDX-License-Identifier: Apache-2.0
// Losses of pairs of other trainers become [preference]; other methods of preference training are refused.
#include "tests/config/converting.h"

namespace stepforge::testing {
namespace {

constexpr const char* kOfFactory =
    "model_name_or_path: m\nstage: dpo\nfinetuning_type: full\ndataset: d\ntemplate: llama3\n";
constexpr const char* kOfAxolotl = "base_model: m\n";
constexpr const char* kOfTrl = "model_name_or_path: m\ndataset_name: d\nlearning_rate: 1e-6\n";

/// All that is set, in one line.
std::string pairs_of(const Config& config) {
  const PreferenceConfig& ours = config.preference;
  const PreferenceConfig usual;
  if (!ours.enabled()) return "none";
  std::string text(choice_name(ours.loss));
  if (ours.beta != usual.beta) text += format(" beta {}", ours.beta);
  if (ours.label_smoothing != 0) text += format(" smoothing {}", ours.label_smoothing);
  if (ours.margin != usual.margin) text += format(" margin {}", ours.margin);
  if (ours.length_normalized) text += " normalized";
  if (ours.sft_weight != usual.sft_weight) text += format(" sft {}", ours.sft_weight);
  if (ours.center_weight != 0) text += format(" center {}", ours.center_weight);
  if (ours.desirable_weight != 1) text += format(" desirable {}", ours.desirable_weight);
  if (ours.undesirable_weight != 1) text += format(" undesirable {}", ours.undesirable_weight);
  if (!ours.reference.empty()) text += format(" against {}", ours.reference);
  return text;
}

std::string factory_pairs(const std::string& more) {
  return pairs_of(converted(kOfFactory + more, "a.yaml", "LLaMA-Factory"));
}
std::string axolotl_pairs(const std::string& more) {
  return pairs_of(converted(kOfAxolotl + more, "a.yaml", "Axolotl"));
}
std::string trl_pairs(const std::string& more) {
  return pairs_of(converted(kOfTrl + more, "a.yaml", "TRL"));
}
std::string refusals_of(const std::string& text) {
  return join(refused(text, "a.yaml"), "; ");
}
std::string listed(const std::string& text) {
  return join(lost(text, "a.yaml"), "; ");
}
/// A list of one data set of Axolotl.
std::string pair_dataset(const std::string& options) {
  return "datasets:\n  - path: a.jsonl\n    " + options + "\n";
}

TEST(ConvertPreference, OfLlamaFactoryHasItsLossAndNumbers) {
  EXPECT_EQ(factory_pairs("pref_beta: 0.2\npref_loss: sigmoid\ndpo_label_smoothing: 0.1\npref_ftx: 0.5\n"),
            "dpo beta 0.2 smoothing 0.1 sft 0.5");
  EXPECT_EQ(factory_pairs(""), "dpo") << "sigmoid is its default";
  EXPECT_EQ(factory_pairs("pref_loss: hinge\n"), "hinge");
  EXPECT_EQ(factory_pairs("pref_loss: ipo\npref_beta: 0.05\n"), "ipo beta 0.05");
  EXPECT_EQ(factory_pairs("pref_loss: simpo\nsimpo_gamma: 0.7\n"), "simpo beta 0.1 margin 0.7")
      << "0.1 is its beta for each loss";
  EXPECT_EQ(factory_pairs("pref_loss: sigmoid\nsimpo_gamma: 0.7\n"), "dpo");
}

TEST(ConvertPreference, OrpoOfLlamaFactoryAddsFtxToItsOwnTerm) {
  EXPECT_EQ(factory_pairs("pref_loss: orpo\npref_beta: 0.3\n"), "orpo beta 0.3 sft 1");
  EXPECT_EQ(factory_pairs("pref_loss: orpo\npref_ftx: 0.25\n"), "orpo sft 1.25");
}

TEST(ConvertPreference, ARowHoldsBothAnswersAndLongPairsAreListed) {
  const std::string file = std::string(kOfFactory) + "cutoff_len: 1000\n";
  const Config config = converted(file, "a.yaml", "LLaMA-Factory");
  EXPECT_EQ(config.training.seq_len, 2000);
  EXPECT_EQ(config.data.packing, Packing::none);
  EXPECT_EQ(config.data.too_long, TooLong::drop);
  EXPECT_CONTAINS(listed(file), "data.too_long");
  EXPECT_EQ(converted(kOfFactory, "a.yaml", "LLaMA-Factory").training.seq_len, 4096) << "2048 is its default";
  EXPECT_EQ(converted(std::string(kOfTrl) + "loss_type: sigmoid\n", "a.yaml", "TRL").training.seq_len, 2048);
  EXPECT_EQ(converted(std::string(kOfAxolotl) + "rl: dpo\nsequence_len: 300\n", "a.yaml", "Axolotl")
                .training.seq_len,
            600);
}

TEST(ConvertPreference, WhatOnlySingleTextsReadNeedsNothing) {
  const Config config = converted(std::string(kOfFactory) +
                                      "packing: true\nmask_history: true\ntrain_on_prompt: true\n"
                                      "label_smoothing_factor: 0.1\n",
                                  "a.yaml", "LLaMA-Factory");
  EXPECT_EQ(config.data.packing, Packing::none);
  EXPECT_EQ(config.training.label_smoothing, 0);
  EXPECT_EQ(config.data.sources.at(0).loss_on, LossOnMessages::assistant);
  EXPECT_EQ(config.data.sources.at(0).dataset, "d");
}

TEST(ConvertPreference, AdaptersHaveNoDropoutOnPairs) {
  const std::string lora = "model_name_or_path: m\ndataset: d\ntemplate: llama3\nlora_dropout: 0.1\n";
  EXPECT_EQ(converted(lora + "stage: dpo\n", "a.yaml", "LLaMA-Factory").adapter.dropout, 0);
  EXPECT_EQ(converted(lora + "stage: sft\n", "a.yaml", "LLaMA-Factory").adapter.dropout, 0.1);
  const std::string trl_lora = std::string(kOfTrl) + "use_peft: true\nloss_type: sigmoid\n";
  EXPECT_EQ(converted(trl_lora, "a.yaml", "TRL").adapter.dropout, 0);
  EXPECT_EQ(converted(trl_lora + "disable_dropout: false\n", "a.yaml", "TRL").adapter.dropout, 0.05);
}

TEST(ConvertPreference, TheReferenceIsTheModelOfTheRunOrAnother) {
  const std::string ours = kOfFactory;
  EXPECT_EQ(factory_pairs("ref_model: m\n"), "dpo");
  EXPECT_EQ(factory_pairs("ref_model: another\n"), "dpo against another");
  EXPECT_EQ(factory_pairs("pref_loss: simpo\nref_model: another\n"), "simpo beta 0.1");
  EXPECT_CONTAINS(refusals_of(ours + "ref_model: another\nref_model_adapters: a\n"), "ref_model_adapters",
                  "merge the adapter");
  EXPECT_EQ(refusals_of(ours + "ref_model_adapters: a\nref_model_quantization_bit: 4\n"), "")
      << "read only with ref_model";
  EXPECT_CONTAINS(listed(ours + "ref_model: another\nref_model_quantization_bit: 4\n"),
                  "ref_model_quantization_bit");
  const std::string continued = "model_name_or_path: m\nstage: dpo\ndataset: d\nadapter_name_or_path: a\n";
  EXPECT_EQ(pairs_of(converted(continued, "a.yaml", "LLaMA-Factory")), "dpo against m")
      << "the reference there is the model without the adapter";
  EXPECT_EQ(pairs_of(converted(continued + "ref_model: another\n", "a.yaml", "LLaMA-Factory")),
            "dpo against another");
  EXPECT_EQ(refused("model_name_or_path: m\nstage: dpo\ndataset: d\npref_loss: orpo\n"
                    "adapter_name_or_path: a\n",
                    "a.yaml"),
            Strings{});
  EXPECT_EQ(trl_pairs("loss_type: sigmoid\nref_model_name_or_path: m\nprecompute_ref_log_probs: true\n"),
            "dpo");
  EXPECT_EQ(trl_pairs("loss_type: sigmoid\nref_model_name_or_path: another\n"), "dpo against another");
  EXPECT_EQ(trl_pairs("loss_type: kto\nref_model_name_or_path: another\n"), "kto against another");
  EXPECT_CONTAINS(refusals_of(std::string(kOfTrl) + "beta: 0.1\nsync_ref_model: true\n"), "sync_ref_model");
  EXPECT_CONTAINS(refusals_of(std::string(kOfTrl) + "beta: 0.1\nreference_free: true\n"), "reference_free",
                  "cpo");
  EXPECT_EQ(trl_pairs("loss_type: sigmoid\nsync_ref_model: false\nreference_free: false\n"), "dpo");
}

TEST(ConvertPreference, OfLlamaFactoryOtherStagesAndLossesAreRefused) {
  const std::string file = "model_name_or_path: m\nfinetuning_type: full\ndataset: d\n";
  EXPECT_CONTAINS(refusals_of(file + "stage: ppo\n"), "stage", "losses of pairs");
  EXPECT_CONTAINS(refusals_of(file + "stage: dpo\npref_loss: kto_pair\n"), "pref_loss", "kto_pair");
  EXPECT_CONTAINS(refusals_of(file + "stage: dpo\npref_bco_weight: 0.1\n"), "pref_bco_weight");
  EXPECT_CONTAINS(refusals_of(file + "stage: dpo\nld_alpha: 0.5\n"), "ld_alpha");
  EXPECT_EQ(
      refusals_of(file + "stage: sft\npref_loss: kto_pair\npref_beta: 0.1\nref_model: r\nld_alpha: 0.5\n"),
      "")
      << "nothing reads them";
}

TEST(ConvertPreference, OfAxolotlHasItsLossAndNumbers) {
  EXPECT_EQ(axolotl_pairs("rl: dpo\nrl_beta: 0.2\ndpo_label_smoothing: 0.1\n"), "dpo beta 0.2 smoothing 0.1");
  EXPECT_EQ(axolotl_pairs("rl: dpo\ndpo_beta: 0.3\nrpo_alpha: 0.5\n"), "dpo beta 0.3 sft 0.5");
  EXPECT_EQ(axolotl_pairs("rl: dpo\ntrl:\n  beta: 0.4\nrl_beta: 0.2\n"), "dpo beta 0.4");
  EXPECT_EQ(axolotl_pairs("rl: dpo\ndpo_norm_loss: true\n"), "dpo normalized");
  EXPECT_EQ(axolotl_pairs("rl: dpo\ndpo_loss_type: [hinge, sft]\ndpo_loss_weights: [1.0, 0.2]\n"),
            "hinge sft 0.2");
  EXPECT_EQ(axolotl_pairs("rl: ipo\nrl_beta: 0.2\n"), "ipo beta 0.2");
  EXPECT_EQ(axolotl_pairs("rl: simpo\nrl_beta: 2.5\nsimpo_gamma: 1.5\ncpo_alpha: 0\n"),
            "simpo beta 2.5 margin 1.5 sft 0");
  EXPECT_EQ(axolotl_pairs("rl: simpo\n"), "simpo beta 0.1 sft 1") << "defaults of its CPOTrainer";
  EXPECT_EQ(axolotl_pairs("rl: orpo\norpo_alpha: 0.2\n"), "orpo beta 0.2");
  EXPECT_CONTAINS(listed(std::string(kOfAxolotl) + "rl: orpo\n"), "prompts count too");
  EXPECT_EQ(axolotl_pairs("rl:\nrl_beta: 0.2\n"), "none");
}

TEST(ConvertPreference, OfAxolotlOtherMethodsAreRefused) {
  for (const char* method : {"grpo", "ebft"})
    EXPECT_CONTAINS(refusals_of(std::string(kOfAxolotl) + "rl: " + method + "\n"),
                    "rl = ", "losses of pairs");
  EXPECT_CONTAINS(refusals_of(std::string(kOfAxolotl) + "rl: dpo\ndpo_loss_type: [sigmoid, bco_pair]\n"),
                  "dpo_loss_type");
  EXPECT_CONTAINS(refusals_of(std::string(kOfAxolotl) + "rl: dpo\ndpo_use_weighting: true\n"),
                  "dpo_use_weighting");
}

TEST(ConvertPreference, DataOfAxolotlArePairsWhereTheFieldsFit) {
  const std::string dpo = std::string(kOfAxolotl) + "rl: dpo\ntrain_on_inputs: true\n";
  for (const char* options :
       {"type: chat_template.default\n    field_messages: conversations\n    field_chosen: chosen\n"
        "    message_property_mappings: {role: from, content: value}\n"
        "    roles: {user: [human], assistant: [gpt]}",
        "type: chat_template", "type: chat_template.argilla_chat", "type: passthrough", "split: train"}) {
    const std::string file = dpo + pair_dataset(options);
    const Config config = converted(file, "a.yaml", "Axolotl");
    ASSERT_EQ(config.data.sources.size(), 1U) << options;
    EXPECT_EQ(config.data.sources[0].format, DataFormat::preference) << options;
    EXPECT_EQ(config.data.sources[0].loss_on, LossOnMessages::assistant) << options;
    EXPECT_EQ(listed(file), "") << options;
  }
  EXPECT_CONTAINS(refusals_of(dpo + pair_dataset("type: chatml.intel")), "a.jsonl (type chatml.intel)",
                  "ranking");
  EXPECT_CONTAINS(refusals_of(dpo + pair_dataset("type: llama3")), "type llama3.default");
  EXPECT_CONTAINS(refusals_of(dpo + pair_dataset("type: {field_prompt: q}")), "type of its own");
  EXPECT_CONTAINS(
      refusals_of(dpo + pair_dataset("type: chat_template.default\n    field_messages: conversation")),
      "field_messages conversation");
  EXPECT_CONTAINS(refusals_of(dpo + pair_dataset("type: chat_template.default\n    field_rejected: bad")),
                  "field_rejected bad");
}

TEST(ConvertPreference, ATypeOfAxolotlNamesItsTemplate) {
  const std::string file = std::string(kOfAxolotl) + "rl: dpo\n" + pair_dataset("type: chatml.argilla_chat") +
                           "chat_template: llama3\n";
  EXPECT_EQ(converted(file, "a.yaml", "Axolotl").data.chat_template, "chatml");
}

TEST(ConvertPreference, TruncatedPairsOfAxolotlAreDropped) {
  const std::string dpo = std::string(kOfAxolotl) + "rl: dpo\n";
  const auto too_long = [](const std::string& file) {
    return converted(file, "a.yaml", "Axolotl").data.too_long;
  };
  EXPECT_EQ(too_long(dpo), TooLong::drop);
  EXPECT_EQ(listed(dpo), "");
  EXPECT_EQ(too_long(dpo + "excess_length_strategy: raise\n"), TooLong::error);
  EXPECT_EQ(too_long(dpo + "excess_length_strategy: truncate\n"), TooLong::drop);
  EXPECT_CONTAINS(listed(dpo + "excess_length_strategy: truncate\n"), "excess_length_strategy");
}

TEST(ConvertPreference, OfTrlTheKeysSayItsTrainer) {
  EXPECT_EQ(trl_pairs("loss_type: sigmoid\nbeta: 0.2\n"), "dpo beta 0.2");
  EXPECT_EQ(trl_pairs("loss_type: sigmoid_norm\n"), "dpo normalized");
  EXPECT_EQ(trl_pairs("loss_type: hinge\n"), "hinge");
  EXPECT_EQ(trl_pairs("loss_type: ipo\nbeta: 0.2\nlabel_smoothing: 0.1\n"), "ipo beta 0.2");
  EXPECT_EQ(trl_pairs("rpo_alpha: 0.5\nlabel_smoothing: 0.1\n"), "dpo smoothing 0.1 sft 0.5");
  EXPECT_EQ(trl_pairs("loss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.25]\n"), "dpo sft 0.25");
  EXPECT_EQ(trl_pairs("cpo_alpha: 0.5\nlabel_smoothing: 0.1\n"), "cpo smoothing 0.1 sft 0.5");
  EXPECT_EQ(trl_pairs("loss_type: simpo\ncpo_alpha: 0.0\nsimpo_gamma: 1.6\nbeta: 10.0\n"),
            "simpo beta 10 margin 1.6 sft 0");
  EXPECT_EQ(trl_pairs("loss_type: simpo\n"), "simpo beta 0.1 sft 1") << "defaults of CPOTrainer";
  EXPECT_EQ(trl_pairs("max_length: 64\n"), "none");
  EXPECT_EQ(trl_pairs("loss_type: nll\n"), "none");
}

TEST(ConvertPreference, OfTrlBetaAloneIsDpoAndListed) {
  const std::string file = std::string(kOfTrl) + "beta: 0.01\nmax_prompt_length: 512\nmax_length: 1024\n";
  EXPECT_EQ(trl_pairs("beta: 0.01\nmax_prompt_length: 512\nmax_length: 1024\n"), "dpo beta 0.01");
  EXPECT_CONTAINS(listed(file), "preference.loss", "ORPOTrainer", "max_prompt_length");
  EXPECT_EQ(listed(file + "loss_type: sigmoid\n").find("ORPOTrainer"), std::string::npos);
}

TEST(ConvertPreference, DataOfTrlArePairs) {
  const Config config =
      converted(std::string(kOfTrl) + "loss_type: sigmoid\nassistant_only_loss: true\n", "a.yaml", "TRL");
  ASSERT_EQ(config.data.sources.size(), 1U);
  EXPECT_EQ(config.data.sources[0].format, DataFormat::preference);
  EXPECT_EQ(config.data.sources[0].loss_on, LossOnMessages::assistant);
  EXPECT_EQ(
      converted("model_name_or_path: m\ndataset_name: d\nloss_type: sigmoid\n", "a.yaml", "TRL").optimizer.lr,
      1e-6)
      << "the default of DPOConfig";
}

TEST(ConvertPreference, RewardModels) {
  const std::string factory =
      "model_name_or_path: m\nstage: rm\ndataset: d\ntemplate: llama3\ncutoff_len: 100\n";
  const Config ours = converted(factory + "pref_beta: 0.3\nlora_dropout: 0.1\n", "a.yaml", "LLaMA-Factory");
  EXPECT_EQ(pairs_of(ours), "reward");
  EXPECT_EQ(ours.training.seq_len, 200);
  EXPECT_EQ(ours.data.packing, Packing::none);
  EXPECT_EQ(ours.adapter.dropout, 0.1) << "it is not switched off there";
  EXPECT_CONTAINS(listed(factory), "value_head.safetensors", "data.too_long");
  EXPECT_EQ(refusals_of(factory), "");

  EXPECT_EQ(trl_pairs("center_rewards_coefficient: 0.01\nbeta: 0.2\n"), "reward center 0.01");
  const Config trl = converted(
      "model_name_or_path: m\ndataset_name: d\nuse_peft: true\nlora_task_type: SEQ_CLS\n", "a.yaml", "TRL");
  EXPECT_EQ(pairs_of(trl), "reward");
  EXPECT_EQ(trl.optimizer.lr, 1e-4) << "the default of RewardConfig";
  EXPECT_EQ(trl.adapter.dropout, 0);
  EXPECT_EQ(trl.data.sources.at(0).format, DataFormat::preference);
  EXPECT_EQ(trl_pairs("use_peft: true\nlora_task_type: CAUSAL_LM\n"), "none");

  EXPECT_EQ(axolotl_pairs("reward_model: true\nnum_labels: 1\ncenter_rewards_coefficient: 0.01\n"),
            "reward center 0.01");
  EXPECT_EQ(axolotl_pairs("reward_model: false\ncenter_rewards_coefficient: 0.01\n"), "none");
  const std::string axolotl = kOfAxolotl;
  EXPECT_CONTAINS(refusals_of(axolotl + "reward_model: true\nnum_labels: 2\n"), "num_labels");
  EXPECT_CONTAINS(refusals_of(axolotl + "num_labels: 1\n"), "num_labels");
  EXPECT_CONTAINS(refusals_of(axolotl + "reward_model: true\nrl: dpo\n"), "reward_model is set");
  EXPECT_CONTAINS(
      refusals_of(axolotl + "reward_model: true\n" + pair_dataset("type: bradley_terry.chat_template")),
      "type bradley_terry.chat_template");
}

TEST(ConvertPreference, JudgedAnswersOfLlamaFactory) {
  const std::string file =
      "model_name_or_path: m\nstage: kto\nfinetuning_type: full\ndataset: d\ntemplate: llama3\ncutoff_len: 100\n";
  const std::string numbers =
      "pref_beta: 0.2\nkto_chosen_weight: 1.5\nkto_rejected_weight: 0.5\npref_ftx: 0.25\npref_loss: sigmoid\n";
  const Config ours = converted(file + numbers, "a.yaml", "LLaMA-Factory");
  EXPECT_EQ(pairs_of(ours), "kto beta 0.2 sft 0.25 desirable 1.5 undesirable 0.5");
  EXPECT_EQ(ours.training.seq_len, 100) << "a row holds one answer";
  EXPECT_EQ(ours.data.too_long, TooLong::drop);
  EXPECT_EQ(refusals_of(file + numbers), "");
  EXPECT_CONTAINS(listed(file), "preference.loss", "the record before");
  EXPECT_EQ(pairs_of(converted(file + "ref_model: another\n", "a.yaml", "LLaMA-Factory")),
            "kto against another");
  EXPECT_EQ(factory_pairs("kto_chosen_weight: 1.5\n"), "dpo") << "read only with stage: kto";
}

TEST(ConvertPreference, JudgedAnswersOfAxolotl) {
  EXPECT_EQ(axolotl_pairs("rl: kto\nrl_beta: 0.2\nkto_desirable_weight: 0.7\nkto_undesirable_weight: 1.3\n"),
            "kto beta 0.2 desirable 0.7 undesirable 1.3");
  EXPECT_EQ(axolotl_pairs("rl: dpo\nkto_desirable_weight: 0.7\n"), "dpo");
  const std::string kto = std::string(kOfAxolotl) + "rl: kto\nsequence_len: 300\n";
  const Config config = converted(kto + pair_dataset("split: train"), "a.yaml", "Axolotl");
  EXPECT_EQ(config.data.sources.at(0).format, DataFormat::unpaired_preference);
  EXPECT_EQ(config.training.seq_len, 300);
  EXPECT_CONTAINS(refusals_of(kto + pair_dataset("type: chatml.argilla")), "a.jsonl (type chatml.argilla)",
                  "kto_tag");
  EXPECT_CONTAINS(refusals_of(kto + pair_dataset("type: {field_prompt: q}")), "type of its own");
}

TEST(ConvertPreference, JudgedAnswersOfTrl) {
  EXPECT_EQ(trl_pairs("desirable_weight: 1.0\nundesirable_weight: 0.5\nbeta: 0.2\n"),
            "kto beta 0.2 undesirable 0.5");
  EXPECT_EQ(trl_pairs("loss_type: kto\n"), "kto");
  EXPECT_EQ(trl_pairs("loss_type: apo_zero_unpaired\n"), "apo_zero_unpaired");
  EXPECT_CONTAINS(refusals_of(std::string(kOfTrl) + "desirable_weight: 1.0\nloss_type: bco\n"), "KTOTrainer");
  const Config config =
      converted("model_name_or_path: m\ndataset_name: d\nloss_type: kto\nmax_length: 64\n", "a.yaml", "TRL");
  EXPECT_EQ(config.data.sources.at(0).format, DataFormat::unpaired_preference);
  EXPECT_EQ(config.training.seq_len, 64);
  EXPECT_EQ(config.optimizer.lr, 1e-6) << "the default of KTOConfig";
}

TEST(ConvertPreference, OfTrlOtherMethodsAndLossesAreRefused) {
  const std::string file = kOfTrl;
  EXPECT_CONTAINS(refusals_of(file + "loss_type: apo_zero\n"), "loss_type");
  EXPECT_CONTAINS(refusals_of(file + "loss_type: [sigmoid, bco_pair, sft]\n"), "loss_type");
  EXPECT_CONTAINS(refusals_of(file + "loss_type: [sigmoid, hinge]\n"), "one loss of pairs");
  EXPECT_CONTAINS(refusals_of(file + "loss_type: [sigmoid, sft]\nloss_weights: [0.8, 1.0]\n"),
                  "loss_weights");
  EXPECT_CONTAINS(refusals_of(file + "loss_type: hinge\ncpo_alpha: 1.0\n"), "CPOTrainer");
  EXPECT_CONTAINS(refusals_of(file + "loss_type: alphapo\n"), "CPOTrainer");
  EXPECT_CONTAINS(refusals_of(file + "loss_type: sigmoid\nf_divergence_type: forward_kl\n"),
                  "f_divergence_type");
  for (const char* key : {"num_generations: 8", "reward_model_path: r"})
    EXPECT_EQ(refused(file + "beta: 0.1\n" + key + "\n", "a.yaml").size(), 1U) << key;
}

}  // namespace
}  // namespace stepforge::testing
