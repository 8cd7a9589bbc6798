// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/memory.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

StepProgram three_operations() {
  StepProgram program;
  program.buffers = {{"w", BufferKind::weights, 100, true},
                     {"a", BufferKind::bundle, 10, false},
                     {"b", BufferKind::graph, 20, false}};
  program.operations.resize(3);
  program.operations[0].allocates = {1};
  program.operations[0].workspace = 50;
  program.operations[1].allocates = {2};
  program.operations[1].workspace = 25;
  program.operations[1].frees = {1};
  program.operations[2].frees = {2};
  return program;
}

TEST(MemoryAccount, FollowsLiveBytesOperationByOperation) {
  EXPECT_EQ(account(three_operations()).live_after, (std::vector<int64_t>{110, 120, 100}));
}

TEST(MemoryAccount, PeakIncludesWorkspaceAndBuffersFreedByTheOperation) {
  const MemoryAccount memory = account(three_operations());
  EXPECT_EQ(memory.peak_bytes, 100 + 10 + 50);
  EXPECT_EQ(memory.peak_operation, 0U);
  EXPECT_EQ(memory.workspace_at_peak, 50);
  StepProgram program = three_operations();
  program.operations[1].workspace = 31;
  EXPECT_EQ(account(program).peak_bytes, 100 + 10 + 20 + 31);
  EXPECT_EQ(account(program).peak_operation, 1U);
}

TEST(MemoryAccount, ReportsThePeakByKind) {
  StepProgram program = three_operations();
  program.operations[1].workspace = 31;
  const MemoryAccount memory = account(program);
  EXPECT_EQ(memory.at_peak.at(BufferKind::weights), 100);
  EXPECT_EQ(memory.at_peak.at(BufferKind::bundle), 10);
  EXPECT_EQ(memory.at_peak.at(BufferKind::graph), 20);
  EXPECT_EQ(memory.persistent_bytes(), 100);
}

Operation on(Lane lane, int64_t workspace, std::vector<int> needs = {}) {
  Operation operation;
  operation.lane = lane;
  operation.workspace = workspace;
  operation.needs = std::move(needs);
  return operation;
}

TEST(MemoryAccount, WorkspacesOfConcurrentLanesAddUp) {
  StepProgram program;
  program.operations = {on(Lane::compute, 1), on(Lane::reduce, 50, {0}), on(Lane::compute, 100),
                        on(Lane::compute, 120, {1})};
  const MemoryAccount memory = account(program);
  EXPECT_EQ(memory.peak_bytes, 150);  // operation 2 neither follows the reduction nor comes before it
  EXPECT_EQ(memory.peak_operation, 1U);
  EXPECT_EQ(memory.workspace_at_peak, 150);
  program.operations[2].needs = {1};
  EXPECT_EQ(account(program).peak_bytes, 120);
}

TEST(MemoryAccount, WorkspacesOfOneLaneDoNotAddUp) {
  StepProgram program;
  program.operations = {on(Lane::reduce, 50), on(Lane::reduce, 60), on(Lane::reduce, 10), on(Lane::gather, 7),
                        on(Lane::compute, 100)};
  EXPECT_EQ(account(program).peak_bytes, 100 + 60 + 7);
}

}  // namespace
}  // namespace stepforge::testing
