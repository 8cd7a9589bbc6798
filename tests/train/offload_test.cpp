// SPDX-License-Identifier: Apache-2.0
// Offloading state to the host changes no bit, on one rank or several.
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

const Strings kOffload{"parallelism.fsdp_cpu_offload=true"};

TEST(Offload, GivesTheBitsOfStateOnTheDevice) {
  const TempFolder folder;
  for (const Strings& more :
       std::vector<Strings>{{}, {"precision.compute=bf16"}, {"training.reduction=ordered"}}) {
    const Records resident = TestRun(job(folder, "resident", more)).run();
    EXPECT_EQ(numbers(TestRun(job(folder, "offloaded", more + kOffload)).run()), numbers(resident));
  }
}

TEST(Offload, GivesTheSameBitsOnSeveralRanks) {
  const TempFolder folder;
  const std::vector<Strings> layouts = {
      {},
      {"parallelism.fsdp_reduce_each_micro_batch=true", "parallelism.fsdp_backward_prefetch=3"},
      {"parallelism.data_parallel_replicate_degree=2", "parallelism.fsdp_reduce_in_flight=2"},
      {"parallelism.data_parallel_replicate_degree=4", "parallelism.fsdp_partition=by_dim"},
      {"precision.reduce=bf16", "activation_checkpoint.mode=full"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Records resident = RankThreads(4).run(job(folder, format("resident-{}", i), layouts[i]))[0];
    expect_same_numbers(RankThreads(4).run(job(folder, format("offloaded-{}", i), layouts[i] + kOffload)),
                        resident, format("layout {}", i));
  }
}

TEST(Offload, ValidatesAndSamplesFromTheHost) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(300));
  const Strings text{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                     "data.document=line",
                     "data.validation_fraction=0.2",
                     "validation.freq=2",
                     "sampling.freq=2",
                     "sampling.prompt=Once",
                     "sampling.max_tokens=4"};
  TestRun resident(job(folder, "resident", text));
  resident.run();
  TestRun offloaded(job(folder, "offloaded", text + kOffload));
  offloaded.run();
  EXPECT_GT(resident.trainer().last_validation.valid_labels, 0);
  EXPECT_EQ(offloaded.trainer().last_validation.loss, resident.trainer().last_validation.loss);
}

TEST(Offload, ANonfiniteStepChangesNothingOnTheHost) {
  const TempFolder folder;
  const Strings planted{"debug.plant_nan_step=3", "debug.plant_nan_block=layers.1",
                        "training.nonfinite=skip"};
  const Records resident = TestRun(job(folder, "resident", planted)).run();
  EXPECT_EQ(resident[2].bits, resident[1].bits);
  EXPECT_EQ(numbers(TestRun(job(folder, "offloaded", planted + kOffload)).run()), numbers(resident));
}

TEST(Offload, ARunMovesBetweenHostAndDeviceByResume) {
  const TempFolder folder;
  const Strings more{"checkpoint.enable=true", "checkpoint.interval=2"};
  const Records uncut = TestRun(job(folder, "uncut", more)).run();
  Records all = TestRun(job(folder, "moved", more + kOffload)).run(2);
  for (const StepRecord& record : TestRun(job(folder, "moved", more)).run()) all.push_back(record);
  EXPECT_EQ(numbers(all), numbers(uncut));
}

}  // namespace
}  // namespace stepforge::testing
