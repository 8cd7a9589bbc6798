// SPDX-License-Identifier: Apache-2.0
// Runs that learn from a teacher: its predictions, layouts, resumes, refusals.
#include <algorithm>
#include <cmath>
#include <set>

#include "stepforge/metrics/names.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/train/pair_runs.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// Prompts without labels and completions with them, of different lengths.
std::string completion_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += format(R"({{"prompt": "{}=", "completion": "{}."}})"
                    "\n",
                    std::string(static_cast<size_t>(1 + i * 7 % 5), static_cast<char>('a' + i % 26)),
                    std::string(static_cast<size_t>(1 + i * 5 % 9), static_cast<char>('A' + i % 26)));
  }
  return lines;
}

Strings completions(const TempFolder& folder, const std::string& name) {
  write_text(folder / "completions.jsonl", completion_lines(90));
  return trainer_run(folder / name) +
         Strings{
             format("data.sources=[{{path=\"{}\",format=\"prompt_completion\"}}]",
                    (folder / "completions.jsonl").string()),
         } +
         kSixSteps;
}

/// A model that has learned something; a Hugging Face folder, its run is `folder`/teacher.
fs::path make_teacher(const TempFolder& folder) {
  TestRun(completions(folder, "teacher") +
          Strings{"model.dim=48", "training.seed=7", "checkpoint.last_save_in_hf=true"})
      .run();
  return folder / "teacher" / "hf" / "step-6";
}

Strings distilled(const TempFolder& folder, const std::string& name, const Strings& more = {}) {
  return completions(folder, name) +
         Strings{format("distillation.teacher={}", (folder / "teacher" / "hf" / "step-6").string()),
                 "distillation.top_k=16"} +
         more;
}

double loss_of_first_step(const Strings& args) {
  return TestRun(args + Strings{"checkpoint.enable=false"}).run(1).front().loss;
}

TEST(DistillationRun, TheLossIsTheWeightedSumOfBoth) {
  const TempFolder folder;
  make_teacher(folder);
  const double labels = loss_of_first_step(completions(folder, "labels"));
  const double teacher = loss_of_first_step(distilled(folder, "teacher_only", {"distillation.weight=1"}));
  EXPECT_GT(std::abs(teacher - labels), 0.01);
  EXPECT_NEAR(loss_of_first_step(distilled(folder, "mixed", {"distillation.weight=0.25"})),
              0.75 * labels + 0.25 * teacher, 1e-5);
  const Strings soft{"distillation.temperature=3"};
  const double softened =
      loss_of_first_step(distilled(folder, "softened", soft + Strings{"distillation.weight=1"}));
  EXPECT_GT(std::abs(softened - teacher), 0.01);
  EXPECT_NEAR(loss_of_first_step(distilled(folder, "mixed_soft", soft + Strings{"distillation.weight=0.25"})),
              0.75 * labels + 0.25 * softened, 1e-5);
}

/// The logged divergence is at the temperature, and the loss has its square.
TEST(DistillationRun, TheDivergenceCountsWithTheSquareOfTheTemperature) {
  const TempFolder folder;
  make_teacher(folder);
  const double loss =
      TestRun(distilled(folder, "run",
                        {"distillation.weight=1", "distillation.temperature=2", "training.steps=1"}))
          .run()
          .front()
          .loss;
  const auto logged = read_jsonl(folder / "run" / "metrics.jsonl");
  EXPECT_NEAR(4.0 * logged.front().find(metric::distillation_kl).value(), loss, 1e-5);
}

TEST(DistillationRun, LogsTheDivergenceWhichFalls) {
  const TempFolder folder;
  make_teacher(folder);
  const Records records = TestRun(distilled(folder, "run", {"distillation.weight=1"})).run();
  const auto logged = read_jsonl(folder / "run" / "metrics.jsonl");
  ASSERT_EQ(logged.size(), records.size());
  for (size_t step = 0; step < records.size(); ++step)
    EXPECT_NEAR(logged[step].find(metric::distillation_kl).value(), records[step].loss, 1e-5);
  EXPECT_LT(records.back().loss, 0.9 * records.front().loss);
}

/// All its tokens: nothing is left to learn, up to what the rounding of the teacher's log-probabilities leaves.
TEST(DistillationRun, AModelLearnsNothingFromItselfAtAnyTemperature) {
  const TempFolder folder;
  const fs::path teacher = make_teacher(folder);
  for (const char* temperature : {"1", "2"}) {
    TestRun run(distilled(folder, format("run-{}", temperature),
                          {format("model.from={}", teacher.string()), "model.dim=48", "distillation.weight=1",
                           format("distillation.temperature={}", temperature), "training.steps=1",
                           "distillation.top_k=257", "checkpoint.enable=false"}));
    const Records records = run.run();
    EXPECT_LT(std::abs(records.front().loss), 1e-5) << temperature;
    EXPECT_LT(records.front().grad_norm, 1e-4) << temperature;
  }
}

TEST(DistillationRun, TheFileHasTheTargetsOfEachLabel) {
  const TempFolder folder;
  make_teacher(folder);
  TestRun run(distilled(folder, "run", {"training.steps=1"}));
  run.build();
  const SafetensorsFile file(folder / "run" / "teacher.safetensors");
  const TensorEntry* const targets = file.find("targets");
  ASSERT_NE(targets, nullptr);
  EXPECT_EQ(targets->shape, (std::vector<int64_t>{run.trainer().teacher->labels(), 2, 16}));
  const std::vector<std::byte> bytes = file.bytes(*targets);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(values)).begin());
  for (size_t label = 0; label < values.size(); label += 32) {
    const std::span<const float> ids = std::span(values).subspan(label, 16);
    EXPECT_EQ(std::set<float>(ids.begin(), ids.end()).size(), 16U);
    double sum = 0.0;
    for (const float log_prob : std::span(values).subspan(label + 16, 16)) sum += std::exp(log_prob);
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

TEST(DistillationRun, HasTheSameBitsOnAnyNumberOfRanks) {
  const TempFolder folder;
  make_teacher(folder);
  const Strings ordered{"training.reduction=ordered"};
  const Records whole = numbers(TestRun(distilled(folder, "whole", ordered)).run());
  EXPECT_EQ(moved_between_ranks(distilled(folder, "moved", ordered), {4, 2, 1}), whole);
}

TEST(DistillationRun, EveryLayoutHasTheCurveOfOneRank) {
  const TempFolder folder;
  make_teacher(folder);
  const Strings heads{"model.n_kv_heads=2", "checkpoint.enable=false", "distillation.temperature=2"};
  const Records whole = TestRun(distilled(folder, "whole", heads)).run();
  for (const Strings& axis :
       {Strings{"parallelism.tensor_parallel_degree=2", "parallelism.disable_loss_parallel=false"},
        Strings{"parallelism.tensor_parallel_degree=2", "parallelism.disable_loss_parallel=true"},
        Strings{"parallelism.context_parallel_degree=2"}, Strings{"parallelism.pipeline_parallel_degree=2"},
        Strings{"parallelism.data_parallel_shard_degree=2"}}) {
    const std::string name = axis.front() + axis.back();
    expect_curve(run_ranks(2, distilled(folder, name, heads + axis)), whole, name, kPairCurve);
  }
}

/// Both change the logits of a chunk, and its gradient.
TEST(DistillationRun, AnAdapterOfTheHeadLearnsFromTheTeacherInEveryLayout) {
  const TempFolder folder;
  make_teacher(folder);
  const Strings heads{"model.n_kv_heads=2"};
  TestRun(completions(folder, "base") + heads +
          Strings{"training.seed=11", "checkpoint.last_save_in_hf=true"})
      .run();
  const Strings adapted =
      heads + Strings{format("checkpoint.initial_load_path={}", (folder / "base" / "hf" / "step-6").string()),
                      "adapter.type=lora", "adapter.rank=4", "adapter.targets=q_proj,lm_head",
                      "checkpoint.enable=false"};
  const Records whole = TestRun(distilled(folder, "whole", adapted)).run();
  EXPECT_GT(std::abs(whole.at(3).loss - whole.at(0).loss), 1e-3) << "it has learned something";
  for (const char* divided : {"true", "false"}) {
    const Strings axis{"parallelism.tensor_parallel_degree=2",
                       format("parallelism.disable_loss_parallel={}", divided)};
    expect_curve(run_ranks(2, distilled(folder, axis.back(), adapted + axis)), whole, axis.back(),
                 kPairCurve);
  }
}

TEST(DistillationRun, WeightsOfLabelsAndAFrozenHeadFollow) {
  const TempFolder folder;
  make_teacher(folder);
  const Strings frozen{"model.tie_embeddings=false", "model.freeze=[\"head\"]"};
  for (const auto& [name, more] :
       {std::pair("weights", Strings{"training.loss_reduction=sample"}), std::pair("frozen", frozen)}) {
    const Strings both = more + Strings{"checkpoint.enable=false", "training.steps=3"};
    const Records whole = TestRun(distilled(folder, format("whole_{}", name), both)).run();
    const Strings parts = both + Strings{"parallelism.context_parallel_degree=2"};
    expect_curve(run_ranks(2, distilled(folder, format("parts_{}", name), parts)), whole, name, kPairCurve);
  }
}

TEST(DistillationRun, AResumeReadsTheFileAgainWithoutTheTeacher) {
  const TempFolder folder;
  make_teacher(folder);
  const Records whole = TestRun(distilled(folder, "whole")).run();
  TestRun(distilled(folder, "run")).run(4);
  fs::remove_all(folder / "teacher");
  TestRun resumed(distilled(folder, "run"));
  EXPECT_EQ(resumed.run().back().bits, whole.back().bits);
  EXPECT_CONTAINS(resumed.log_text(), "the predictions of the teacher", "teacher.safetensors");
}

TEST(DistillationRun, RefusesAFileOfOtherDataOrAnotherTeacher) {
  const TempFolder folder;
  make_teacher(folder);
  TestRun(distilled(folder, "run")).run(2);
  const auto fault = [&](const Strings& more) {
    return message_of<UsageError>([&] { TestRun(distilled(folder, "run") + more).build(); });
  };
  EXPECT_CONTAINS(fault({"distillation.top_k=8"}), "with 16 tokens for each label");
  EXPECT_CONTAINS(fault({"distillation.temperature=2"}),
                  "at temperature 1, and distillation.temperature = 2");
  EXPECT_CONTAINS(fault({format("distillation.teacher={}", (folder / "run").string())}),
                  "that is not the one of distillation.teacher");
  EXPECT_CONTAINS(fault({"training.seq_len=40", "checkpoint.allow_changed=[\"data\"]"}), "for other data");
}

TEST(DistillationRun, AnInterruptionEndsThePassOfTheTeacher) {
  const TempFolder folder;
  make_teacher(folder);
  InterruptWatcher interrupts([](int) {});
  interrupts.request();
  EXPECT_CONTAINS(message_of<Error>([&] { TestRun(distilled(folder, "run"), &interrupts).build(); }),
                  "interrupted before the predictions of its teacher were complete");
  EXPECT_FALSE(fs::exists(folder / "run" / "teacher.safetensors"));
}

TEST(DistillationRun, ARunAndItsCheckpointAreTeachersToo) {
  const TempFolder folder;
  const fs::path exported = make_teacher(folder);
  const auto loss_of = [&](const std::string& name, const fs::path& teacher) {
    return loss_of_first_step(distilled(folder, name, {format("distillation.teacher={}", teacher.string())}));
  };
  const double expected = loss_of("of_folder", exported);
  EXPECT_EQ(loss_of("of_run", folder / "teacher"), expected);
  EXPECT_EQ(loss_of("of_checkpoint", folder / "teacher" / "checkpoint" / "step-6"), expected);
}

/// A rate of almost 0 leaves the function of the model as it is, whatever its adapter begins with.
TEST(DistillationRun, ARunOfAnAdapterIsATeacherAsItsModelIs) {
  const TempFolder folder;
  const fs::path exported = make_teacher(folder);
  const auto loss_of = [&](const std::string& name, const fs::path& teacher) {
    return loss_of_first_step(
        distilled(folder, "by_" + name, {format("distillation.teacher={}", teacher.string())}));
  };
  const double expected = loss_of("model", exported);
  const std::vector<std::pair<std::string, Strings>> kinds = {
      {"lora", {"adapter.type=lora"}},
      {"dora", {"adapter.type=dora"}},
      {"pissa", {"adapter.type=lora", "adapter.init=pissa"}}};
  for (const auto& [name, kind] : kinds) {
    TestRun(completions(folder, name) + kind +
            Strings{format("checkpoint.initial_load_path={}", exported.string()), "model.dim=48",
                    "adapter.rank=4", "training.steps=2", "optimizer.lr=1e-12"})
        .run();
    EXPECT_NEAR(loss_of(name, folder / name), expected, 1e-5 * expected) << name;
  }
}

TEST(DistillationRun, ThePlanCountsItsMemory) {
  const TempFolder folder;
  make_teacher(folder);
  for (const char* temperature : {"1", "2"}) {
    TestRun run(distilled(
        folder, format("run-{}", temperature),
        {"distillation.top_k=64", format("distillation.temperature={}", temperature), "training.steps=3"}));
    expect_planned_memory(run);
  }
}

TEST(DistillationRun, RefusesWhatHasNoTeacher) {
  const TempFolder folder;
  make_teacher(folder);
  const auto fault = [&](const Strings& more) {
    return message_of<Error>([&] { TestRun(distilled(folder, "run", more)).build(); });
  };
  EXPECT_CONTAINS(fault({"training.label_smoothing=0.1"}), "distillation.teacher",
                  "training.label_smoothing");
  EXPECT_CONTAINS(fault({"preference.loss=dpo"}), "distillation.teacher", "preference.loss");
  EXPECT_CONTAINS(fault({"distillation.top_k=300"}), "distillation.top_k = 300");
  EXPECT_CONTAINS(fault({"distillation.teacher=nowhere"}), "nowhere");
  EXPECT_CONTAINS(
      message_of<Error>([&] {
        TestRun(completions(folder, "none") + Strings{"distillation.top_k=8", "distillation.temperature=2"})
            .build();
      }),
      "distillation.top_k", "distillation.temperature");
  EXPECT_CONTAINS(fault({"distillation.temperature=0"}), "distillation.temperature");
}

TEST(DistillationRun, ATeacherHasTheTokensOfTheRun) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(200));
  TestRun(completions(folder, "teacher") +
          Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                  "data.packing=concat", "tokenizer.type=bpe", "tokenizer.vocab_size=300",
                  "checkpoint.last_save_in_hf=true"})
      .run();
  EXPECT_CONTAINS(message_of<UsageError>([&] { TestRun(distilled(folder, "run")).build(); }),
                  "has another tokenizer than the run");
}

}  // namespace
}  // namespace stepforge::testing
