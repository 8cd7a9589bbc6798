// SPDX-License-Identifier: Apache-2.0
// One rank trains on a simulated device as on the CPU, bit for bit, and never waits for it inside a step.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/sim/block_cache.h"
#include "stepforge/sim/machine.h"
#include "tests/catalog/all_families.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

using sim::Machine;

class SimTraining : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { Machine::get().set_delays({.seed = 1, .most_microseconds = 15}); }
  static void TearDownTestSuite() { Machine::get().set_delays({}); }

  std::vector<StepRecord> records(const std::string& name, const Strings& options) {
    return TestRun(trainer_run(folder_.path() / name) +
                   Strings{"kernels.reference=true", "training.steps=4"} + options)
        .run();
  }
  void expect_equal(const Strings& options) {
    const std::vector<StepRecord> expected = records("cpu", options + Strings{"training.device=cpu"});
    EXPECT_EQ(records("sim", options + Strings{"training.device=sim:0"}), expected) << join(options, " ");
    remove_folder("cpu");
    remove_folder("sim");
  }
  void remove_folder(const std::string& name) { std::filesystem::remove_all(folder_.path() / name); }

  TempFolder folder_;
};

TEST_F(SimTraining, EveryFamilyTrainsAsOnTheCpu) {
  for (const std::string& family : family_names()) expect_equal(setting_overrides(family));
}

TEST_F(SimTraining, EveryOptionTrainsAsOnTheCpu) {
  expect_equal({"precision.compute=bf16"});
  expect_equal({"model.dropout=0.1"});
  expect_equal({"training.reduction=ordered"});
  expect_equal({"activation_checkpoint.mode=full"});
  for (const char* optimizer : {"adamw_8bit", "lion", "muon", "sgd"})
    expect_equal({std::string("optimizer.name=") + optimizer});
}

TEST_F(SimTraining, PairsOfAnswersTrainAsOnTheCpu) {
  const std::filesystem::path file = folder_.path() / "pairs.jsonl";
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += format(R"({{"prompt": "{}+{}=", "chosen": "{}", "rejected": "{}?"}})"
                    "\n",
                    i, i * 7 % 10, i + i * 7 % 10, i);
  write_text(file, lines);
  const Strings pairs{format("data.sources=[{{path=\"{}\",format=\"preference\"}}]", file.string()),
                      "data.packing=best_fit", "training.seq_len=48"};
  expect_equal(pairs + Strings{"preference.loss=dpo"});
  expect_equal(pairs +
               Strings{"preference.loss=orpo", "model.tie_embeddings=false", "model.freeze=[\"head\"]"});
}

TEST_F(SimTraining, ARunIsResumedOnAnotherKindOfDevice) {
  const Strings options{"training.steps=6", "checkpoint.interval=3"};
  const std::vector<StepRecord> whole = records("whole", options + Strings{"training.device=cpu"});
  for (const auto& [first, second] :
       {std::pair("sim:0", "sim:1"), std::pair("cpu", "sim"), std::pair("sim", "cpu")}) {
    const Strings begin =
        options + Strings{"kernels.reference=true", std::string("training.device=") + first};
    const Strings rest =
        options + Strings{"kernels.reference=true", std::string("training.device=") + second};
    TestRun(trainer_run(folder_.path() / "parts") + begin).run(3);
    const std::vector<StepRecord> resumed = TestRun(trainer_run(folder_.path() / "parts") + rest).run();
    EXPECT_EQ(resumed, std::vector(whole.begin() + 3, whole.end())) << first << ", then " << second;
    remove_folder("parts");
  }
}

TEST_F(SimTraining, ValidationAndSamplesAreThoseOfTheCpu) {
  const auto results = [&](const char* device) {
    TestRun run(trainer_run(folder_.path() / device) +
                Strings{"kernels.reference=true", "training.steps=4", "validation.freq=2", "sampling.freq=2",
                        "data.validation_fraction=0.1", std::string("training.device=") + device});
    run.run();
    return std::pair(run.trainer().last_validation.loss, samples_of(folder_.path() / device / "log.txt"));
  };
  EXPECT_EQ(results("sim"), results("cpu"));
}

TEST_F(SimTraining, ANonfiniteValueIsFoundWhereItBegan) {
  const auto message = [&](const char* device) {
    return message_of<Error>([&] {
      records(std::string("nan") + device, {"debug.plant_nan_step=2", "debug.plant_nan_block=layers.1",
                                            std::string("training.device=") + device});
    });
  };
  EXPECT_EQ(message("sim"), message("cpu"));
  EXPECT_CONTAINS(message("cpu"), "layers.1");
}

/// What a device did in each step.
struct StepCounts {
  std::vector<int64_t> operations;
  std::vector<int64_t> host_waits;
  std::vector<int64_t> blocks;
};

StepCounts counts_of(const Strings& options) {
  StepCounts counts;
  const TempFolder folder;
  TestRun run(trainer_run(folder.path() / "run") +
              Strings{"training.device=sim:1", "checkpoint.enable=false"} + options);
  Trainer& trainer = run.trainer();
  sim::Counts before;
  int64_t blocks = 0;
  trainer.add_callback(std::make_unique<CallAt>([&](Trainer&) {
    const sim::Counts now = Machine::get().counts(1);
    const int64_t all = sim::BlockCache::get().stats(1).system_blocks;
    counts.operations.push_back(now.operations - before.operations);
    counts.host_waits.push_back(now.host_waits - before.host_waits);
    counts.blocks.push_back(all - blocks);
    before = now;
    blocks = all;
  }));
  trainer.build();
  trainer.run();
  return counts;
}

TEST_F(SimTraining, ADenseStepWaitsOnlyForItsNumbersAndTakesNoMemory) {
  const StepCounts counts = counts_of({});
  for (size_t step = 3; step < counts.operations.size(); ++step) {
    EXPECT_GT(counts.operations[step], 100) << step;
    EXPECT_EQ(counts.host_waits[step], 1) << step;
    EXPECT_EQ(counts.blocks[step], 0) << step;
  }
  EXPECT_TRUE(Machine::get().counts(1).host_operations.empty());
}

TEST_F(SimTraining, LossesBySourceCostOneWaitMore) {
  const StepCounts counts =
      counts_of({"data.sources=[{name=\"a\",format=\"synthetic\"},{name=\"b\",format=\"synthetic\"}]",
                 "metrics.log_freq=1"});
  ASSERT_GT(counts.host_waits.size(), 3U);
  for (size_t step = 3; step < counts.host_waits.size(); ++step)
    EXPECT_EQ(counts.host_waits[step], 2) << step;
}

}  // namespace
}  // namespace stepforge::testing
