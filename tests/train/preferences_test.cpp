// SPDX-License-Identifier: Apache-2.0
// Runs on pairs of answers: the reference, layouts, resume, validation.
#include <algorithm>
#include <cmath>

#include "tests/train/pair_runs.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

TEST(PreferenceRun, StartsAsItsReferenceAndLearnsThePreference) {
  const TempFolder folder;
  for (const auto& [loss, first] : {std::pair("dpo", std::log(2.0)), {"hinge", 1.0}, {"ipo", 25.0}}) {
    TestRun run(pair_run(folder, loss, loss));
    const Records records = run.run();
    EXPECT_NEAR(records.front().loss, first, 1e-9) << loss;
    EXPECT_LT(records.back().loss, 0.9 * first) << loss;
  }
}

TEST(PreferenceRun, EveryLossLearnsThePreference) {
  const TempFolder folder;
  for (const char* loss : {"dpo", "hinge", "ipo", "cpo", "simpo", "orpo"}) {
    TestRun run(pair_run(folder, loss, loss) + Strings{"data.validation_fraction=0.2", "validation.freq=3"});
    run.run();
    const auto& figures = run.trainer().last_pairs.figures;
    EXPECT_GT(figures[0], 4.0) << "pairs";
    EXPECT_GT(figures[1], figures[2]) << loss << ": rewards";
    EXPECT_EQ(run.trainer().last_validation.loss, run.trainer().last_pairs.loss);
  }
}

/// Ordered sums: the same bits on any number of ranks, and after moving between them.
TEST(PreferenceRun, HasTheSameBitsOnAnyNumberOfRanks) {
  const TempFolder folder;
  const Strings ordered{"training.reduction=ordered"};
  const Records whole = numbers(TestRun(pair_run(folder, "whole", "dpo") + ordered).run());
  EXPECT_EQ(moved_between_ranks(pair_run(folder, "moved", "dpo") + ordered), whole);
}

/// Cases 45 to 47 of silent faults.
TEST(PreferenceRun, EveryLayoutHasTheCurveOfOneRank) {
  const TempFolder folder;
  const Strings heads{"model.n_kv_heads=2"};
  for (const char* loss : {"dpo", "orpo"}) {
    const Records whole = TestRun(pair_run(folder, format("whole-{}", loss), loss) + heads).run();
    for (const char* axis :
         {"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_degree=2",
          "parallelism.pipeline_parallel_degree=2", "parallelism.data_parallel_shard_degree=2"}) {
      const Records found =
          run_ranks(2, pair_run(folder, format("{}-{}", axis, loss), loss) + heads + Strings{axis});
      expect_curve(found, whole, axis, kPairCurve);
    }
  }
}

TEST(PreferenceRun, AdaptersBesideSpreadExpertsHaveTheCurveOfOneRank) {
  const TempFolder folder;
  const Strings experts{"model.family=qwen3_moe",
                        "model.n_experts=4",
                        "model.experts_per_token=2",
                        "model.moe_ffn_dim=16",
                        "adapter.type=lora",
                        "adapter.rank=4",
                        "model.router_aux_loss_weight=0.01",
                        "checkpoint.enable=false"};
  const Records whole = TestRun(pair_run(folder, "whole") + experts).run();
  const Records found =
      run_ranks(2, pair_run(folder, "spread") + experts + Strings{"parallelism.expert_parallel_degree=2"});
  expect_curve(found, whole, "spread", kPairCurve);
}

/// With a frozen head one pass over the vocabulary does what otherwise takes two.
TEST(PreferenceRun, AFrozenHeadPassesTheSameGradient) {
  const TempFolder folder;
  const auto norm_of = [&](const std::string& name, const Strings& more) {
    TestRun run(pair_run(folder, name, "dpo") + Strings{"training.steps=1", "checkpoint.enable=false"} +
                more);
    run.run();
    const at::Tensor gradient = run.trainer().store->unit(0).gradient();
    return gradient.to(at::kDouble).norm().item<double>();
  };
  const double trained = norm_of("trained", {"model.tie_embeddings=false"});
  const double frozen = norm_of("frozen", {"model.tie_embeddings=false", "model.freeze=[\"head\"]"});
  EXPECT_GT(trained, 0.0);
  EXPECT_NEAR(frozen, trained, 1e-5 * trained);
}

TEST(PreferenceRun, ReadsItsReferenceAgain) {
  const TempFolder folder;
  TestRun(pair_run(folder, "run")).run(2);
  const fs::path file = folder / "run" / "reference.safetensors";
  ASSERT_TRUE(fs::exists(file));
  const auto fault = [&](const Strings& more) {
    return message_of<UsageError>([&] { TestRun(pair_run(folder, "run") + more).run(); });
  };
  EXPECT_CONTAINS(fault({"data.validation_fraction=0.2", "checkpoint.allow_changed=[\"data\"]"}),
                  "has the log-probabilities of other data");
  fs::remove(file);
  EXPECT_CONTAINS(fault({}), "reference.safetensors is missing");
}

TEST(PreferenceRun, AnInterruptionEndsThePassOfTheReference) {
  const TempFolder folder;
  InterruptWatcher interrupts([](int) {});
  interrupts.request();
  EXPECT_CONTAINS(message_of<Error>([&] { TestRun(pair_run(folder, "run"), &interrupts).build(); }),
                  "interrupted before the log-probabilities of its reference were complete");
  EXPECT_FALSE(fs::exists(folder / "run" / "reference.safetensors"));
}

TEST(PreferenceRun, ANewRunFromACheckpointHasThatModelAsItsReference) {
  const TempFolder folder;
  TestRun(pair_run(folder, "first")).run();
  const Strings from{format("checkpoint.initial_load_path={}", (folder / "first/checkpoint/step-6").string()),
                     "checkpoint.initial_load_model_only=true", "training.steps=1"};
  EXPECT_NEAR(TestRun(pair_run(folder, "second") + from).run().front().loss, std::log(2.0), 1e-9);
}

TEST(PreferenceRun, LogsWhatTrlLogs) {
  const TempFolder folder;
  TestRun(pair_run(folder, "run", "simpo")).run();
  const auto records = read_jsonl(folder / "run" / "metrics.jsonl");
  ASSERT_FALSE(records.empty());
  const auto at = [&](const char* name) { return records.back().find(name).value(); };
  EXPECT_NEAR(at("rewards/margins"), at("rewards/chosen") - at("rewards/rejected"), 1e-12);
  EXPECT_GE(at("rewards/accuracies"), 0.5);
  EXPECT_LT(at("logps/chosen"), 0.0);
}

TEST(PreferenceRun, ThePlanCountsItsMemory) {
  const TempFolder folder;
  for (const Strings& more : {Strings{}, Strings{"model.tie_embeddings=false", "model.freeze=[\"head\"]"}}) {
    TestRun run(pair_run(folder, format("run{}", more.size())) + more);
    expect_planned_memory(run);
  }
}

TEST(PreferenceRun, RefusesWhatPairsDoNotGoWith) {
  const TempFolder folder;
  const auto fault = [&](const std::string& setting) {
    return message_of<Error>([&] { TestRun(pair_run(folder, "run") + Strings{setting}).build(); });
  };
  EXPECT_CONTAINS(fault("data.packing=concat"), "best_fit");
  EXPECT_CONTAINS(fault("training.z_loss_weight=0.1"), "preference.loss weighs whole answers");
  EXPECT_CONTAINS(fault("training.label_smoothing=0.1"), "preference.label_smoothing");
  EXPECT_CONTAINS(fault("preference.loss=none"), "preference.loss");
  EXPECT_CONTAINS(fault("preference.margin=1"), "preference.loss");
  EXPECT_CONTAINS(
      fault(format("data.sources=[{{path=\"{}\",format=\"messages\"}}]", (folder / "pairs.jsonl").string())),
      "these are single texts");
}

}  // namespace
}  // namespace stepforge::testing
