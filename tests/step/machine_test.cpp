// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/machine.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/strings.h"

namespace stepforge::testing {
namespace {

TEST(MachineText, NamesTheMachineAndItsRates) {
  EXPECT_EQ(machine_text(MachineModel{}),
            "model machine: 100 GFLOP/s, memory 20 GB/s, network 10 GB/s, 5 us per operation");
  EXPECT_CONTAINS(machine_text({.name = "fast", .flops_per_second = 9.894e14}), "fast: 989.4 TFLOP/s, ");
}

TEST(MachineText, NamesHostsAndCores) {
  const MachineModel machine{.network = {.seconds = 2e-6},
                             .between_hosts = {.bytes_per_second = 5e10, .seconds = 1e-5},
                             .ranks_per_host = 8,
                             .cores = 1};
  EXPECT_CONTAINS(machine_text(machine),
                  "; hosts of 8 ranks, 50 GB/s between them, latency 10 us (2 us within); 1 core per host");
}

/// 100 B/s and 1 s within hosts of four ranks, 10 B/s and 3 s between them.
const MachineModel kHosts{.name = "test",
                          .seconds_per_operation = 0,
                          .network = {.bytes_per_second = 100, .seconds = 1},
                          .between_hosts = {.bytes_per_second = 10, .seconds = 3},
                          .ranks_per_host = 4};

TEST(Collectives, TakeTheTimeOfARingWithinAHost) {
  EXPECT_DOUBLE_EQ(collective_seconds(kHosts, std::vector{4, 5, 6, 7}, 800, 1), 3 * (200.0 / 100 + 1));
  EXPECT_DOUBLE_EQ(collective_seconds(kHosts, std::vector{4, 5, 6, 7}, 800, 2), 6 * (200.0 / 100 + 1));
}

TEST(Collectives, AreAsSlowAsTheSlowestLinkOfTheirRing) {
  EXPECT_DOUBLE_EQ(collective_seconds(kHosts, std::vector{0, 4}, 800, 1), 400.0 / 10 + 3);
  EXPECT_DOUBLE_EQ(collective_seconds(kHosts, std::vector{0, 1, 4}, 900, 1), 2 * (300.0 / 10 + 3));
}

// Four ranks on each of two hosts: 1/4 of the bytes cross, on each of four links.
TEST(Collectives, ExchangeBetweenHostsFirstIfTheirRanksAreEven) {
  EXPECT_DOUBLE_EQ(collective_seconds(kHosts, std::vector{0, 1, 2, 3, 4, 5, 6, 7}, 800, 1),
                   (100.0 / 10 + 3) + 3 * (200.0 / 100 + 1));
}

TEST(Operations, MessagesTakeTheLinkBetweenTheirRanks) {
  StepProgram program;
  program.rank = 3;
  Operation message = make_operation(OpKind::send);
  message.bytes = 500;
  message.peer = 2;
  EXPECT_DOUBLE_EQ(operation_seconds(program, message, kHosts), 1 + 500.0 / 100);
  message.peer = 4;
  EXPECT_DOUBLE_EQ(operation_seconds(program, message, kHosts), 3 + 500.0 / 10);
}

TEST(Operations, ReductionsPassOnceAndAllReducesTwice) {
  StepProgram program;
  program.groups = {{"fsdp", {0, 1}}};
  Operation reduction = make_operation(OpKind::reduce_start, -1, 0);
  reduction.bytes = 800;
  EXPECT_DOUBLE_EQ(operation_seconds(program, reduction, kHosts), 5);
  EXPECT_EQ(sent_bytes(program, reduction), 400);
  Operation sum = make_operation(OpKind::all_reduce_start, -1, 0);
  sum.bytes = 800;
  EXPECT_DOUBLE_EQ(operation_seconds(program, sum, kHosts), 10);
  EXPECT_EQ(sent_bytes(program, sum), 800);
}

TEST(Operations, ExchangesOfABlockTakeTheSlowestLinkOfTheirGroup) {
  StepProgram program;
  program.groups = {{"tp", {0, 1}}, {"cp", {0, 4}}};
  Operation forward;
  forward.exchanges[0] = {0, 200};
  forward.exchanges[1] = {1, 200};
  EXPECT_DOUBLE_EQ(operation_seconds(program, forward, kHosts), 2 + 20);
}

/// Three links of 100 B/s each, to each of the three other ranks of a host.
const MachineModel kMesh{.seconds_per_operation = 0,
                         .network = {.bytes_per_second = 300},
                         .links_in_host = 3,
                         .between_hosts = {.bytes_per_second = 10},
                         .ranks_per_host = 4};

TEST(Mesh, AMessageTakesTheLinkToItsPeer) {
  EXPECT_EQ(kMesh.link(0, 3).bytes_per_second, 100);
  EXPECT_EQ(kMesh.link(0, 4).bytes_per_second, 10);
}

TEST(Mesh, ACollectiveTakesTheLinksToTheRanksOfItsGroup) {
  EXPECT_EQ(kMesh.slowest_link(std::vector{0, 1}).bytes_per_second, 100);
  EXPECT_EQ(kMesh.slowest_link(std::vector{0, 1, 2, 3}).bytes_per_second, 300);
  EXPECT_EQ(kMesh.slowest_link(std::vector{3}).bytes_per_second, 100);
  // Between hosts 1/4 of the bytes of each rank, within a host over all three links.
  EXPECT_DOUBLE_EQ(collective_seconds(kMesh, std::vector{0, 1, 2, 3, 4, 5, 6, 7}, 2400, 1),
                   300.0 / 10 + 3 * (600.0 / 300));
}

}  // namespace
}  // namespace stepforge::testing
