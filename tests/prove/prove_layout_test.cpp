// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/prove_layout.h"

#include <tuple>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"
#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/generators.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

Config config_of(const Strings& args) {
  return load_config(std::nullopt, Strings{"preset=debug"} + args).config;
}

TEST(SmallExactJob, KeepsEveryAxisAndPolicyInSmall) {
  const Config job = small_exact_job(
      config_of(
          {"parallelism.data_parallel_replicate_degree=8", "parallelism.context_parallel_degree=3",
           "parallelism.tensor_parallel_degree=8", "parallelism.fsdp_partition=by_dim",
           "parallelism.fsdp_prefetch_lists=[{unit=\"layers.1\", forward=[\"layers.2\", \"layers.3\"]}, "
           "{unit=\"layers.3\", backward=[\"layers.2\"]}]",
           "activation_checkpoint.mode=blocks", "activation_checkpoint.blocks=[3]", "training.seq_len=96",
           "model.n_heads=8", "model.n_kv_heads=8", "training.local_batch_size=1",
           "training.global_batch_size=64"}),
      8 * 4 * 3 * 8);
  const ParallelismConfig& parallelism = job.parallelism;
  EXPECT_EQ(parallelism.data_parallel_replicate_degree, 2);
  EXPECT_EQ(parallelism.data_parallel_shard_degree, 2);
  EXPECT_EQ(parallelism.context_parallel_degree, 3);
  EXPECT_EQ(parallelism.tensor_parallel_degree, 2);
  EXPECT_EQ(parallelism.fsdp_partition, PartitionKind::by_dim);
  ASSERT_EQ(parallelism.fsdp_prefetch_lists.size(), 1U);
  EXPECT_EQ(parallelism.fsdp_prefetch_lists[0].forward, (Strings{"layers.2"}));
  EXPECT_EQ(job.activation_checkpoint.mode, RecomputeMode::blocks);
  EXPECT_EQ(job.training.local_batch_size, 3);  // two micro-batches
  EXPECT_THROW(small_exact_job(config_of({"parallelism.tensor_parallel_degree=3"}), 4), UsageError);
}

TEST(SmallExactJob, RecomputesTheCallsThatItsLayersHave) {
  const auto calls = [](const std::string& names) {
    return small_exact_job(
               config_of({"activation_checkpoint.mode=calls", "activation_checkpoint.calls=[" + names + "]"}),
               1)
        .activation_checkpoint.calls;
  };
  EXPECT_EQ(calls("\"attention.post_norm\", \"mlp.gate_up\", \"linear\""),
            (Strings{"mlp.gate_up", "linear"}));
  EXPECT_EQ(calls("\"attention.post_norm\""), Strings{"swiglu"});
}

TEST(SmallExactJob, KeepsBothStagesOfHybridContextParallelism) {
  const Config job = small_exact_job(
      config_of({"parallelism.context_parallel_degree=8", "parallelism.context_parallel_method=hybrid",
                 "parallelism.ulysses_degree=4"}),
      8);
  EXPECT_EQ(job.parallelism.context_parallel_degree, 4);
  EXPECT_EQ(job.parallelism.ulysses_degree, 2);
}

const Strings kSpreadExperts{"model.family=qwen3_moe", "model.n_experts=8", "model.experts_per_token=2",
                             "parallelism.expert_parallel_degree=4"};

const Strings kMtp{"preset=deepseek-v3",    "tokenizer.type=bytes", "data.sources=[{format=\"synthetic\"}]",
                   "training.seq_len=64",   "model.n_mtp_layers=2", "training.local_batch_size=2",
                   "precision.compute=fp32"};

const Strings kAdapters{"adapter.type=lora", "checkpoint.enable=false"};
const Strings kAdaptedVocabulary = kAdapters + Strings{"adapter.targets=all-linear,embed_tokens,lm_head"};
const Strings kMagnitudes{"adapter.type=dora", "checkpoint.enable=false"};
const Strings kAdaptedExperts{"adapter.type=lora", "checkpoint.enable=false",
                              R"(adapter.targets=all-linear,.*\.experts\.\d+\..*)"};

/// A run on pairs of answers, whose data the small job does not read.
Config on_pairs(PreferenceLoss loss, const Strings& args) {
  Config config = config_of(args);
  config.preference.loss = loss;
  if (config.preference.scores()) config.model.head = HeadKind::score;
  return config;
}

TEST(ProveLayout, LayoutsOfAllAxesAreThoseOfOneRank) {
  const std::vector<std::pair<int, Strings>> jobs = {
      {1, {}},
      {16, {"parallelism.fsdp_cpu_offload=true", "model.dropout=0.1"}},
      {32,
       {"parallelism.data_parallel_replicate_degree=4", "parallelism.tensor_parallel_degree=4",
        "parallelism.context_parallel_degree=2", "parallelism.context_parallel_method=ring",
        "model.n_kv_heads=4"}},
      {8, {"parallelism.context_parallel_degree=8", "parallelism.context_parallel_method=hybrid"}},
      {3,
       {"parallelism.tensor_parallel_degree=3", "training.seq_len=96", "model.n_heads=6",
        "model.n_kv_heads=3", "model.dim=96"}},
      {4,
       {"parallelism.tensor_parallel_degree=2",
        "parallelism.tensor_parallel_plan=[{pattern=\"mlp|head\", style=\"replicate\"}]"}},
      {6,
       {"parallelism.context_parallel_degree=3", "parallelism.context_parallel_method=ulysses",
        "training.seq_len=96", "model.tie_embeddings=true", "activation_checkpoint.mode=full",
        "model.n_heads=6", "model.n_kv_heads=3", "model.dim=96"}},
      {16, kSpreadExperts + Strings{"parallelism.data_parallel_replicate_degree=2"}},
      {8, kSpreadExperts +
              Strings{"parallelism.context_parallel_degree=2", "parallelism.expert_parallel_degree=8"}},
      {8, kSpreadExperts + Strings{"parallelism.pipeline_parallel_degree=2"}},
      {16, kSpreadExperts + Strings{"parallelism.tensor_parallel_degree=2"}},
      {8,
       kSpreadExperts + Strings{"parallelism.tensor_parallel_degree=2",
                                "parallelism.expert_parallel_degree=8", "activation_checkpoint.mode=full"}},
      {8, kSpreadExperts + Strings{"parallelism.tensor_parallel_degree=4", "model.n_kv_heads=4",
                                   "parallelism.expert_parallel_degree=1"}},
      {16, kSpreadExperts + Strings{"parallelism.tensor_parallel_degree=4", "model.n_kv_heads=4",
                                    "parallelism.expert_tensor_parallel_degree=4"}},
      {4, kAdapters + Strings{"parallelism.context_parallel_degree=2", "adapter.dropout=0.1"}},
      {4, kAdaptedVocabulary + Strings{"parallelism.tensor_parallel_degree=2", "adapter.dropout=0.1"}},
      {2, kAdaptedVocabulary + Strings{"parallelism.pipeline_parallel_degree=2"}},
      {2, kAdapters + Strings{"parallelism.tensor_parallel_degree=2", "adapter.dropout=0.1",
                              "parallelism.enable_sequence_parallel=false"}},
      {4, kMagnitudes + Strings{"parallelism.tensor_parallel_degree=2"}},
      {4, kMagnitudes + Strings{"parallelism.tensor_parallel_degree=2", "adapter.dropout=0.1",
                                "parallelism.enable_sequence_parallel=false"}},
      {8, kSpreadExperts + kAdaptedExperts},
      {8, kSpreadExperts + kAdaptedExperts + Strings{"adapter.type=dora", "adapter.experts=shared_a"}},
      {2,
       kAdapters + Strings{"model.family=qwen2", "adapter.bias=all", "parallelism.tensor_parallel_degree=2"}},
      {8, kSpreadExperts + kAdaptedExperts +
              Strings{"parallelism.tensor_parallel_degree=2", "adapter.experts=shared_a"}},
      {8, kSpreadExperts + kAdapters + Strings{"parallelism.tensor_parallel_degree=2"}},
      {8, kMtp},
      {4, kMtp + Strings{"parallelism.tensor_parallel_degree=4",
                         "parallelism.tensor_parallel_plan=[{pattern=\"attention\", style=\"replicate\"}]",
                         "parallelism.enable_sequence_parallel=false"}},
      {8, kMtp + Strings{"parallelism.expert_parallel_degree=4", "parallelism.pipeline_parallel_degree=2"}},
      {8, kMtp + Strings{"parallelism.tensor_parallel_degree=2", "parallelism.expert_parallel_degree=4",
                         "parallelism.tensor_parallel_plan=[{pattern=\"attention\", style=\"replicate\"}]"}},
      {8, kMtp + kAdaptedVocabulary + Strings{"parallelism.expert_parallel_degree=4"}}};
  for (const auto& [ranks, args] : jobs) {
    const LayoutProof proof = prove_layout_of(config_of(args), ranks);
    EXPECT_EQ(proof.difference, "") << join(args, " ");
    EXPECT_EQ(proof.facts.size(), 2U);
    EXPECT_EQ(proof.left_out, Strings{});
  }
}

TEST(ProveLayout, PairsOfAnswersAreThoseOfOneRank) {
  using enum PreferenceLoss;
  const std::vector<std::tuple<int, PreferenceLoss, Strings>> jobs = {
      {4, dpo, {"parallelism.tensor_parallel_degree=2"}},
      {2, hinge, {"parallelism.context_parallel_degree=2"}},
      {8, orpo, {"parallelism.context_parallel_degree=8", "parallelism.context_parallel_method=hybrid"}},
      {4,
       cpo,
       {"parallelism.pipeline_parallel_degree=2", "training.local_batch_size=1",
        "training.global_batch_size=8"}},
      {3,
       ipo,
       {"parallelism.tensor_parallel_degree=3", "training.seq_len=96", "model.n_heads=6",
        "model.n_kv_heads=3", "model.dim=96"}},
      {4, simpo, kSpreadExperts},
      {4, dpo, kAdapters + Strings{"parallelism.context_parallel_degree=2"}},
      {4,
       reward,
       {"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_degree=2",
        "parallelism.enable_sequence_parallel=false"}},
      {4, reward, {"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2"}},
      {4, kto, {"parallelism.context_parallel_degree=2"}},
      {4,
       kto,
       {"parallelism.pipeline_parallel_degree=2", "training.local_batch_size=1",
        "training.global_batch_size=8"}},
      {4, apo_zero_unpaired, {"parallelism.tensor_parallel_degree=2"}}};
  for (const auto& [ranks, loss, args] : jobs) {
    const LayoutProof proof = prove_layout_of(on_pairs(loss, args), ranks);
    EXPECT_EQ(proof.difference, "") << choice_name(loss) << " " << join(args, " ");
    EXPECT_EQ(proof.facts.size(), 2U);
    EXPECT_EQ(proof.left_out, Strings{});
  }
}

TEST(ProveLayout, TargetsOfATeacherAreThoseOfOneRank) {
  const std::vector<std::pair<int, Strings>> jobs = {
      {4, {"parallelism.context_parallel_degree=2"}},
      {4, kAdaptedVocabulary + Strings{"parallelism.tensor_parallel_degree=2"}},
      {2, {"parallelism.pipeline_parallel_degree=2", "model.tie_embeddings=true"}}};
  for (const auto& [ranks, args] : jobs) {
    Config config = config_of(args);
    config.distillation.teacher = "of a job";
    const LayoutProof proof = prove_layout_of(config, ranks);
    EXPECT_EQ(proof.difference, "") << join(args, " ");
    EXPECT_EQ(proof.facts.size(), 2U);
    EXPECT_EQ(proof.left_out, Strings{});
  }
}

TEST(SmallExactJob, HasThePairsAndTheHeadOfTheJob) {
  const Config job = small_exact_job(on_pairs(PreferenceLoss::reward, {}), 2);
  EXPECT_EQ(job.preference.loss, PreferenceLoss::reward);
  EXPECT_EQ(job.model.head, HeadKind::score);
  EXPECT_EQ(job.data.sources.at(0).format, DataFormat::preference);
  const Config judged = small_exact_job(on_pairs(PreferenceLoss::kto, {}), 2);
  EXPECT_EQ(judged.preference.loss, PreferenceLoss::kto);
  EXPECT_EQ(judged.data.sources.at(0).format, DataFormat::unpaired_preference);
  EXPECT_EQ(small_exact_job(config_of({}), 2).data.sources.at(0).format, DataFormat::synthetic);
}

TEST(ProveLayout, PipelinesOfEveryScheduleAreThoseOfOneRank) {
  const Strings pipeline{"parallelism.pipeline_parallel_degree=4", "training.local_batch_size=1",
                         "training.global_batch_size=32"};
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string name(kind.name);
    const bool even = kind.stages.min == 1;
    const Config config = config_of(
        pipeline + Strings{"model.n_layers=6", "model.tie_embeddings=" + std::string(even ? "true" : "false"),
                           "parallelism.pipeline_parallel_schedule=" + name,
                           "activation_checkpoint.mode=blocks", "activation_checkpoint.blocks=[0, 2]"});
    const LayoutProof proof = prove_layout_of(config, 8);
    EXPECT_EQ(proof.difference, "") << name;
    ASSERT_EQ(proof.facts.size(), 2U);
    EXPECT_CONTAINS(proof.facts[0], "on 4 ranks (dp_shard 2 x pp 2)");
  }
}

TEST(SmallExactJob, KeepsTheStagesOfEachRankAndTheFileOfASchedule) {
  const Config interleaved = small_exact_job(
      config_of({"parallelism.pipeline_parallel_degree=3", "parallelism.pipeline_parallel_schedule=LoopedBFS",
                 "parallelism.pipeline_parallel_layers_per_stage=1", "model.n_layers=13",
                 "training.local_batch_size=1", "training.global_batch_size=6"}),
      3);
  EXPECT_EQ(interleaved.parallelism.pipeline_parallel_degree, 3);
  EXPECT_EQ(interleaved.parallelism.pipeline_parallel_stages.size(), 15U);
  EXPECT_EQ(interleaved.model.n_layers, 13);
  EXPECT_EQ(interleaved.training.local_batch_size, 4);  // six micro-batches

  const TempFolder folder;
  const auto with_file = [&](int micro_batches) {
    write_text(folder / "own.csv", schedule_csv(make_schedule(ScheduleKind::gpipe, 4, 1, micro_batches)));
    return config_of({"parallelism.pipeline_parallel_degree=4", "model.n_layers=3",
                      "parallelism.pipeline_parallel_schedule_csv=" + (folder / "own.csv").string(),
                      "training.local_batch_size=1", format("training.global_batch_size={}", micro_batches)});
  };
  const Config kept = small_exact_job(with_file(8), 4);
  EXPECT_EQ(kept.parallelism.pipeline_parallel_degree, 4);
  EXPECT_EQ(kept.training.local_batch_size, 3);
  const LayoutProof proof = prove_layout_of(with_file(11), 4);
  EXPECT_EQ(proof.difference, "");
  EXPECT_CONTAINS(proof.facts.at(0), "on 4 ranks (pp 4)");
  EXPECT_EQ(proof.left_out, Strings{});
}

TEST(SmallExactJob, KeepsUpToNineMicroBatchesAndOddNumbers) {
  const auto micro_batches = [](int64_t count) {
    const Config job =
        small_exact_job(config_of({"parallelism.pipeline_parallel_degree=4", "training.local_batch_size=1",
                                   format("training.global_batch_size={}", 2 * count)}),
                        8);
    return job.training.global_batch_size / (2 * job.training.local_batch_size);
  };
  for (int64_t count = 1; count <= 9; ++count) EXPECT_EQ(micro_batches(count), count);
  EXPECT_EQ(micro_batches(32), 8);
  EXPECT_EQ(micro_batches(63), 9);
}

/// The exact model would accept some of them.
TEST(ProveLayout, WhatTrainingRefusesIsRefusedWithItsMessage) {
  const auto expect_refused = [](const Strings& args, const std::string& reason) {
    EXPECT_CONTAINS(message_of<UsageError>([&] { prove_layout_of(config_of(args), 8); }), reason);
  };
  const Strings all_tokens{"parallelism.tensor_parallel_degree=2",
                           "parallelism.enable_sequence_parallel=false"};
  expect_refused(kSpreadExperts + all_tokens,
                 "parallelism.expert_parallel_degree = 4, but parallelism.tensor_parallel_degree = 2 without "
                 "sequence parallelism");
  expect_refused(
      kSpreadExperts + all_tokens +
          Strings{"parallelism.expert_parallel_degree=1", "parallelism.expert_tensor_parallel_degree=2"},
      "expert_tensor_parallel_degree = 2, but parallelism.tensor_parallel_degree = 2 without");
  expect_refused(kMtp + Strings{"parallelism.context_parallel_degree=2"}, "has latent attention, whose keys");
}

/// Sums of rounded gradients depend on the layout.
TEST(ProveLayout, WhatIsNotComparedIsListedAndThreadsStay) {
  at::set_num_threads(3);
  const LayoutProof proof =
      prove_layout_of(config_of({"training.reduction=ordered", "precision.compute=bf16"}), 2);
  EXPECT_EQ(proof.difference, "");
  EXPECT_EQ(proof.left_out, (Strings{"training.reduction = \"ordered\"", "precision.compute = \"bf16\""}));
  EXPECT_EQ(at::get_num_threads(), 3);
  // How parts of the weights are found is not exact, and the number of tokens of desirable answers is no power of two.
  Config others = on_pairs(PreferenceLoss::kto, kAdapters);
  others.adapter.init = AdapterInit::pissa;
  others.preference.sft_weight = 0.5;
  EXPECT_EQ(prove_layout_of(others, 2).left_out,
            (Strings{"adapter.init = \"pissa\"", "preference.sft_weight = \"0.5\""}));
}

TEST(ProveLayout, TheFirstDifferenceIsNamed) {
  const TempFolder folder;
  for (const Config& config : {config_of({}), on_pairs(PreferenceLoss::dpo, {})}) {
    Config job = small_exact_job(config, 2);
    job.precision.reduce = DType::bf16;
    const LayoutProof proof = prove_layout(job, folder / std::string(choice_name(config.preference.loss)));
    EXPECT_CONTAINS(proof.difference, "that of one rank");
    EXPECT_CONTAINS(proof.difference, "step ");
  }
}

}  // namespace
}  // namespace stepforge::testing
