// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/planned_machine.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

PlannedMachine machine_of(const Strings& settings, int ranks = 0) {
  return plan_machine(parse_config("", "run.toml", settings), ranks);
}

std::string refused_machine(const Strings& settings, int ranks = 0) {
  return message_of<UsageError>([&] { machine_of(settings, ranks); });
}

TEST(PlannedMachine, HasARankOnEachDeviceOfItsHosts) {
  EXPECT_EQ(machine_of({"machine.name=h100-sxm", "machine.hosts=3"}).ranks, 24);
  EXPECT_EQ(machine_of({"machine.name=h100-sxm", "machine.hosts=3"}, 24).ranks, 24);
  EXPECT_EQ(machine_of({"machine.name=h100-sxm"}, 4).ranks, 4);
  EXPECT_EQ(machine_of({"machine.name=h100-sxm"}).ranks, 1);
  EXPECT_EQ(machine_of({}, 5).ranks, 5);
}

TEST(PlannedMachine, WithoutANameHasTheAssumedRates) {
  EXPECT_FALSE(machine_of({}).spec.has_value());
  EXPECT_EQ(machine_of({}).model(DType::bf16).flops_per_second, MachineModel{}.flops_per_second);
}

TEST(PlannedMachine, GivesTheMemoryThatTheRuntimeLeaves) {
  const MemoryBudget memory = machine_of({"machine.name=h200"}).memory();
  EXPECT_EQ(memory.bytes, int64_t{143771 - 1024} << 20);
  EXPECT_EQ(memory.source, "are free on h200 (140.4 GiB less 1.0 GiB of its runtime)");
  EXPECT_FALSE(memory.with_host);
}

TEST(PlannedMachine, RefusesWhatContradictsOrIsNoMachine) {
  EXPECT_CONTAINS(refused_machine({"machine.name=h100-sxm", "machine.hosts=2"}, 12),
                  "--world-size 12 contradicts machine.hosts = 2: 2 hosts of 8 devices have 16 ranks");
  EXPECT_CONTAINS(refused_machine({"machine.name=nvl72"}), "machine.name = \"nvl72\" has no device");
  EXPECT_CONTAINS(refused_machine({"machine.name=b300"}),
                  "command line: machine.name: \"b300\" is no machine");
  EXPECT_CONTAINS(refused_machine({"machine.hosts=2"}), "set machine.name");
}

}  // namespace
}  // namespace stepforge::testing
