// SPDX-License-Identifier: Apache-2.0
// Several ranks, each on a simulated device of its own, train as on the CPU, bit for bit, under every kind of layout.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/catalog/all_families.h"
#include "tests/sim/sim_ranks.h"

namespace stepforge::testing {
namespace {

class SimRanks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { sim::Machine::get().set_delays({.seed = 2, .most_microseconds = 15}); }
  static void TearDownTestSuite() { sim::Machine::get().set_delays({}); }

  static void expect_equal(int ranks, const Strings& options) {
    const Strings more = options + Strings{"training.steps=3"};
    const DeviceRun expected = run_on("cpu", ranks, more);
    const DeviceRun found = run_on("sim", ranks, more);
    for (size_t rank = 0; rank < expected.records.size(); ++rank) {
      EXPECT_EQ(expected.failures[rank] + found.failures[rank], "") << join(options, " ");
      EXPECT_EQ(found.records[rank], expected.records[rank]) << join(options, " ") << ", rank " << rank;
    }
  }
};

TEST_F(SimRanks, ShardsTrainAsOnTheCpu) {
  expect_equal(2, {"debug.check_copies_freq=1", "training.steps=3"});
  expect_equal(2, {"parallelism.fsdp_partition=by_dim", "parallelism.fsdp_forward_prefetch=2",
                   "parallelism.fsdp_reduce_in_flight=2"});
  expect_equal(
      2, {"parallelism.fsdp_reshard_after_forward=never", "precision.compute=bf16", "precision.reduce=bf16"});
  expect_equal(4, {"parallelism.data_parallel_replicate_degree=2", "training.reduction=ordered"});
}

TEST_F(SimRanks, OffloadedUnitsTrainAsOnTheCpu) {
  expect_equal(1, {"parallelism.fsdp_cpu_offload=true"});
  expect_equal(2, {"parallelism.fsdp_cpu_offload=true", "parallelism.fsdp_partition=by_tensor"});
}

const Strings kTensor{"model.n_kv_heads=2", "parallelism.tensor_parallel_degree=2"};

TEST_F(SimRanks, DividedTensorsTrainAsOnTheCpu) {
  expect_equal(2, kTensor);
  expect_equal(2, kTensor + Strings{"parallelism.enable_sequence_parallel=false",
                                    "parallelism.disable_loss_parallel=true"});
  expect_equal(2, kTensor + Strings{"parallelism.enable_async_tensor_parallel=true"});
  expect_equal(4, kTensor);
}

TEST_F(SimRanks, DividedRowsTrainAsOnTheCpu) {
  for (const char* method : {"allgather", "ring", "ulysses"})
    expect_equal(2, {"model.n_kv_heads=2", "parallelism.context_parallel_degree=2",
                     std::string("parallelism.context_parallel_method=") + method});
}

TEST_F(SimRanks, PipelinesTrainAsOnTheCpu) {
  for (const char* schedule : {"1F1B", "GPipe", "Interleaved1F1B", "ZBVZeroBubble"})
    expect_equal(2, {"model.n_layers=4", "parallelism.pipeline_parallel_degree=2",
                     std::string("parallelism.pipeline_parallel_schedule=") + schedule});
}

TEST_F(SimRanks, SpreadExpertsTrainAsOnTheCpu) {
  const Strings experts = setting_overrides("qwen3_moe") + Strings{"parallelism.expert_parallel_degree=2"};
  expect_equal(2, experts);
  expect_equal(2, experts + Strings{"parallelism.expert_parallel_dispatcher=allgather"});
}

}  // namespace
}  // namespace stepforge::testing
