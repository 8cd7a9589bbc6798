// SPDX-License-Identifier: Apache-2.0
// Long runs under random delays: no false alarm, and the bits of the CPU.
#include <gtest/gtest.h>

#include "tests/sim/sim_ranks.h"
#include "tests/support/long_tests.h"

namespace stepforge::testing {
namespace {

class SimDelaysLongTest : public ::testing::TestWithParam<SimLayout> {};

TEST_P(SimDelaysLongTest, AThousandStepsUnderRandomDelaysGiveNoFalseAlarm) {
  if (!long_tests()) GTEST_SKIP() << "set STEPFORGE_LONG_TESTS=1";
  const SimLayout& layout = GetParam();
  const Strings options = layout.options + Strings{"training.steps=1000", "training.global_batch_size=2"};
  const DeviceRun expected = run_on("cpu", layout.ranks, options);
  sim::Machine::get().set_delays({.seed = 5, .most_microseconds = 100});
  const DeviceRun found = run_on("sim", layout.ranks, options);
  sim::Machine::get().set_delays({});
  for (size_t rank = 0; rank < found.records.size(); ++rank) {
    ASSERT_EQ(expected.failures[rank], "");
    EXPECT_EQ(found.failures[rank], "");
    ASSERT_EQ(found.records[rank].size(), 1000);
    EXPECT_EQ(found.records[rank].back(), expected.records[rank].back());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SimDelaysLongTest,
    ::testing::Values(SimLayout{"fsdp", 2, {}},
                      SimLayout{"offload", 1, {"parallelism.fsdp_cpu_offload=true"}},
                      SimLayout{"pipeline", 2, {"parallelism.pipeline_parallel_degree=2"}},
                      SimLayout{"ring",
                                2,
                                {"model.n_kv_heads=2", "parallelism.context_parallel_degree=2",
                                 "parallelism.context_parallel_method=ring"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
