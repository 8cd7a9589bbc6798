// SPDX-License-Identifier: Apache-2.0
// Runs that compare with another model than that at their start (preference.reference): what it says, layouts, resumes, refusals.
#include <cmath>

#include <ATen/ops/equal.h>

#include "tests/train/judged_runs.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

const Strings kWider{"model.dim=48"};

/// A run on answers of `loss`.
Strings answer_run(const TempFolder& folder, const std::string& name, const std::string& loss = "dpo") {
  return loss == "kto" ? judged_run(folder, name) : pair_run(folder, name, loss);
}

/// A wider model that has learned something; a Hugging Face folder, its run is `folder`/other.
fs::path make_other(const TempFolder& folder) {
  TestRun(answer_run(folder, "other", "orpo") + kWider +
          Strings{"training.seed=7", "training.steps=2", "checkpoint.last_save_in_hf=true"})
      .run();
  return folder / "other" / "hf" / "step-2";
}

Strings compared_run(const TempFolder& folder, const std::string& name, const Strings& more = {},
                     const std::string& loss = "dpo") {
  return answer_run(folder, name, loss) +
         Strings{format("preference.reference={}", (folder / "other" / "hf" / "step-2").string())} + more;
}

std::vector<PairTable> tables_of(const Strings& args) {
  TestRun run(args);
  run.build();
  const PreferenceData& data = run.trainer().preferences;
  return {data.training, data.validation, data.mismatched_training, data.mismatched_validation};
}

std::string stored_reference(const TempFolder& folder, const std::string& run) {
  return read_file(folder / run / "reference.safetensors");
}

/// What a run that starts from the other model finds for the model at its start.
TEST(SecondReference, SaysWhatTheOtherModelSays) {
  const TempFolder folder;
  const Strings of_other{format("checkpoint.initial_load_path={}", make_other(folder).string())};
  const Strings validated{"data.validation_fraction=0.2", "validation.freq=3"};
  for (const char* loss : {"dpo", "kto"}) {
    const auto expected =
        tables_of(answer_run(folder, format("start-{}", loss), loss) + kWider + of_other + validated);
    const auto found = tables_of(compared_run(folder, format("second-{}", loss), validated, loss));
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].empty(), i > 1 && std::string(loss) == "dpo");
      ASSERT_EQ(found[i].tensors().size(), expected[i].tensors().size());
      for (size_t source = 0; source < found[i].tensors().size(); ++source)
        EXPECT_TRUE(at::equal(found[i].tensors()[source], expected[i].tensors()[source])) << loss << i;
    }
  }
}

TEST(SecondReference, IsInTheLossOfAllWeightsAndOfAnAdapter) {
  const TempFolder folder;
  const Strings of_other{format("checkpoint.initial_load_path={}", make_other(folder).string()),
                         "training.steps=1", "checkpoint.enable=false"};
  const auto first = [&](const std::string& name, const Strings& more) {
    return TestRun(compared_run(folder, name, of_other + more)).run().front().loss;
  };
  const Strings adapted = kWider + Strings{"adapter.type=lora", "adapter.rank=4"};
  EXPECT_NEAR(first("equal", kWider), std::log(2.0), 1e-6) << "a model compared with itself";
  EXPECT_NEAR(first("adapter", adapted), std::log(2.0), 1e-6);
  const double other =
      TestRun(compared_run(folder, "unequal", {"training.steps=1", "checkpoint.enable=false"}))
          .run()
          .front()
          .loss;
  EXPECT_GT(std::abs(other - std::log(2.0)), 1e-3);
}

TEST(SecondReference, EveryLayoutComparesWithTheSameNumbers) {
  const TempFolder folder;
  make_other(folder);
  const Strings short_run{"model.n_kv_heads=2", "training.steps=2", "checkpoint.enable=false"};
  const Records whole = TestRun(compared_run(folder, "whole", short_run)).run();
  for (const char* axis :
       {"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_degree=2",
        "parallelism.pipeline_parallel_degree=2", "parallelism.data_parallel_shard_degree=2"}) {
    expect_curve(run_ranks(2, compared_run(folder, axis, short_run + Strings{axis})), whole, axis,
                 kPairCurve);
    EXPECT_EQ(stored_reference(folder, axis), stored_reference(folder, "whole")) << axis;
  }
}

TEST(SecondReference, AResumeReadsTheFileAgainWithoutTheModel) {
  const TempFolder folder;
  make_other(folder);
  const Strings four{"training.steps=4"};
  const Records whole = TestRun(compared_run(folder, "whole", four)).run();
  TestRun(compared_run(folder, "run", four)).run(2);
  fs::remove_all(folder / "other");
  TestRun resumed(compared_run(folder, "run", four));
  EXPECT_EQ(resumed.run().back().bits, whole.back().bits);
  EXPECT_CONTAINS(resumed.log_text(), "the log-probabilities of the reference", "reference.safetensors");
}

TEST(SecondReference, AResumeRefusesAnotherReference) {
  const TempFolder folder;
  make_other(folder);
  TestRun(compared_run(folder, "run")).run(2);
  TestRun(answer_run(folder, "of_start")).run(2);
  const auto fault = [](const Strings& args) {
    return message_of<UsageError>([&] { TestRun(args).build(); });
  };
  const Strings of_run{format("preference.reference={}", (folder / "of_start").string())};
  EXPECT_CONTAINS(fault(compared_run(folder, "run", of_run)),
                  "another reference than preference.reference as it is");
  EXPECT_CONTAINS(fault(answer_run(folder, "run")),
                  "another reference than the model at the start of the run");
  EXPECT_CONTAINS(fault(compared_run(folder, "of_start")),
                  "another reference than preference.reference as it is");
  EXPECT_CONTAINS(
      fault(compared_run(folder, "run",
                         {"data.validation_fraction=0.2", "checkpoint.allow_changed=[\"data\"]"})),
      "has the log-probabilities of other data");
}

TEST(SecondReference, AnInterruptionEndsItsPass) {
  const TempFolder folder;
  make_other(folder);
  InterruptWatcher interrupts([](int) {});
  interrupts.request();
  EXPECT_CONTAINS(message_of<Error>([&] { TestRun(compared_run(folder, "run"), &interrupts).build(); }),
                  "interrupted before the log-probabilities of its reference were complete");
  EXPECT_FALSE(fs::exists(folder / "run" / "reference.safetensors"));
}

TEST(SecondReference, RefusesLossesWithoutOneAndModelsThatCannotJudge) {
  const TempFolder folder;
  make_other(folder);
  const auto fault = [&](const Strings& more, const std::string& loss) {
    return message_of<UsageError>([&] { TestRun(compared_run(folder, "run", more, loss)).build(); });
  };
  for (const char* loss : {"cpo", "simpo", "orpo", "reward"})
    EXPECT_CONTAINS(fault({}, loss), "preference.reference", "it is not read", loss);
  EXPECT_CONTAINS(fault({"preference.reference=nowhere"}, "dpo"), "nowhere");
  TestRun(answer_run(folder, "judge", "reward") + Strings{"training.steps=2"}).run();
  EXPECT_CONTAINS(fault({format("preference.reference={}", (folder / "judge").string())}, "dpo"),
                  "preference.reference", "is a reward model");
  write_text(folder / "tale.txt", some_text(200));
  const Strings with_tokens{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                            "preference.loss=none",
                            "data.packing=concat",
                            "tokenizer.type=bpe",
                            "tokenizer.vocab_size=300",
                            "training.steps=2"};
  TestRun(answer_run(folder, "tokens") + with_tokens).run();
  EXPECT_CONTAINS(fault({format("preference.reference={}", (folder / "tokens").string())}, "dpo"),
                  "preference.reference", "has another tokenizer than the run");
}

}  // namespace
}  // namespace stepforge::testing
