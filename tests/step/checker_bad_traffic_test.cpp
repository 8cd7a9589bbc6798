// SPDX-License-Identifier: Apache-2.0
// Each test damages a sound program in one way; the checker must name the rank, the operation and the reason.
// Messages and collectives.
#include <gtest/gtest.h>

#include "tests/step/good_programs.h"

namespace stepforge::testing {
namespace {

// ---- messages ----

TEST(CheckerRefuses, MessageSizesThatDiffer) {
  Programs programs = pipeline_1f1b(2);
  operation(programs[0], {OpKind::send, -1, -1, 1}).bytes = 32;
  expect_refused(programs, 1, "receive layers.1 m1",
                 "expects bytes = 512, but the next message, from rank 0, operation");
}

TEST(CheckerRefuses, MessageTagsThatDiffer) {
  Programs programs = pipeline_1f1b(2);
  operation(programs[1], {OpKind::send_gradient, -1, -1, 1}).tag = 7;
  expect_refused(programs, 1, "send_gradient layers.1 m1",
                 "it has tag 7, but what it carries between stages has tag 3");
}

TEST(CheckerRefuses, MessagesInAnotherOrder) {
  Programs programs = pipeline_1f1b(3);
  const auto first = find(programs[0], {OpKind::send, -1, -1, 1});
  const auto second = find(programs[0], {OpKind::send, -1, -1, 2});
  move(programs[0], first, second + 1);
  expect_refused(programs, 1, "receive layers.1 m1", "expects micro-batch = 1");
}

TEST(CheckerRefuses, SendWithoutReceive) {
  Programs programs = pipeline_1f1b(1);
  const auto send = find(programs[0], {OpKind::send});
  insert_operations(programs[0].operations, {{send + 1, programs[0].operations[send]}});
  programs[0].operations[send].frees.clear();
  expect_refused(programs, 0, "send layers.0 m0", "rank 1 never receives it");
}

TEST(CheckerRefuses, ReceiveWithoutSend) {
  Programs programs = pipeline_1f1b(1);
  const auto send = find(programs[0], {OpKind::send});
  operation(programs[0], {OpKind::forward, -1, 1}).frees = programs[0].operations[send].frees;
  erase(programs[0], send);
  expect_refused(programs, 1, "receive layers.1 m0", "rank 0 never sends it");
}

TEST(CheckerRefuses, InputThatWasNotReceived) {
  Programs programs = pipeline_1f1b(2);
  erase(programs[1], find(programs[1], {OpKind::receive, -1, -1, 1}));
  expect_refused(programs, 1, "forward layers.1 m1",
                 "value input of layers.1 on micro-batch 1 has not been computed or received");
}

TEST(CheckerRefuses, SendBeforeTheComputation) {
  Programs programs = pipeline_1f1b(1);
  move(programs[0], find(programs[0], {OpKind::send}), find(programs[0], {OpKind::forward, -1, 1}));
  expect_refused(programs, 0, "send layers.0 m0", "has not been computed");
}

TEST(CheckerRefuses, ComputationThatDoesNotNeedTheReceive) {
  Programs programs = pipeline_1f1b(1);
  operation(programs[1], {OpKind::forward}).needs.clear();
  expect_refused(programs, 1, "forward layers.1 m0",
                 "runs on lane receive_next, and no dependency orders them");
}

TEST(CheckerRefuses, SendThatDoesNotNeedTheComputation) {
  Programs programs = pipeline_1f1b(1);
  operation(programs[0], {OpKind::send}).needs.clear();
  expect_refused(programs, 0, "send layers.0 m0", "runs on lane compute, and no dependency orders them");
}

TEST(CheckerRefuses, SendAndReceiveThatDeadlock) {
  Programs programs = pipeline_1f1b(2);
  // Rank 0 waits for the gradient of micro-batch 0 before it sends micro-batch 0.
  StepProgram& program = programs[0];
  const auto receive = find(program, {OpKind::receive_gradient, -1, -1, 0});
  move(program, receive, find(program, {OpKind::send, -1, -1, 0}));
  operation(program, {OpKind::send, -1, -1, 0})
      .needs.push_back(static_cast<int>(find(program, {OpKind::receive_gradient, -1, -1, 0})));
  expect_refused(programs, 0, "receive_gradient layers.0 m0", "rank 1 at operation");
}

TEST(CheckerRefuses, SendsThatBothWaitForTheirReceivers) {
  Programs programs = pipeline_1f1b(2);
  // Each rank receives only what the other one sends after its own message has been taken.
  const auto receive_after = [](StepProgram& program, const Match& receive, const Match& send) {
    move(program, find(program, receive), find(program, send) + 1);
    operation(program, receive).needs = {static_cast<int>(find(program, send))};
  };
  receive_after(programs[1], {OpKind::receive, -1, -1, 1}, {OpKind::send_gradient, -1, -1, 0});
  receive_after(programs[0], {OpKind::receive_gradient, -1, -1, 0}, {OpKind::send, -1, -1, 1});
  expect_refused(programs, 0, "send layers.0 m1", "waits for rank 1 to receive");
}

// ---- collectives ----

TEST(CheckerRefuses, CollectivesInAnotherOrder) {
  RankOptions options = small_options();
  options.reduce.in_flight = 4;
  Programs programs = sharded(2, 1, 1, options);
  StepProgram& program = programs[1];
  move(program, find(program, {OpKind::reduce_start, 3}), find(program, {OpKind::reduce_start, 2}) + 1);
  expect_refused(programs, 1, "reduce_start layers.1", "differs from rank 0, operation");
}

TEST(CheckerRefuses, CollectiveThatOneRankDoesNotIssue) {
  RankOptions options = small_options();
  options.gather.reshard = ReshardMode::always;
  Programs programs = sharded(2, 1, 1, options);
  options.gather.reshard = ReshardMode::never;
  programs[1] = sharded(2, 1, 1, options)[1];
  expect_refused(programs, 1, "reduce_start layers.1", "differs from rank 0, operation");
}

TEST(CheckerRefuses, LastCollectiveThatOneRankDoesNotIssue) {
  Programs programs = two_ranks();
  StepProgram& program = programs[0];
  for (const OpKind kind : {OpKind::gather_start, OpKind::gather_wait, OpKind::release}) {
    Operation again;
    again.kind = kind;
    again.lane = lane_of(kind);
    again.unit = 1;
    again.group = kind == OpKind::gather_start ? 0 : -1;
    again.bytes = kind == OpKind::gather_start ? program.units[1].gathered_bytes : 0;
    again.needs = {static_cast<int>(program.operations.size()) - 1};
    program.operations.push_back(again);
  }
  expect_refused(programs, 0, "gather_start layers.0 over fsdp", "has no partner on rank 1");
}

TEST(CheckerRefuses, CollectiveSizesThatDiffer) {
  Programs programs = two_ranks();
  Operation& gather = operation(programs[1], {OpKind::gather_start, 2});
  gather.bytes = 1;
  programs[1].units[2].gathered_bytes = 1;
  expect_refused(programs, 1, "gather_start layers.1", "has 1 bytes, but rank 0, operation");
}

TEST(CheckerRefuses, GroupWithDifferentMembersOnItsRanks) {
  Programs programs = sharded(2, 2, 1, small_options());
  programs[1].groups[0].ranks = {0, 1, 2};
  expect_refused(programs, 0, "gather_start embedding over fsdp", "rank 1 is a member of fsdp {0, 1} here");
}

TEST(CheckerRefuses, CollectivesOfTwoGroupsThatDeadlock) {
  Programs programs = two_ranks();
  StepProgram& program = programs[1];
  move(program, find(program, {OpKind::reduce_loss}), find(program, {OpKind::check_finite}));
  expect_refused(programs, 0, "reduce_loss over loss", "waits for rank 1 to join; rank 1 at operation");
}

TEST(CheckerRefuses, DeadlockOverTwoLanes) {
  // Rank 0 begins its last reduction only after the loss is reduced; rank 1 the other way round.
  Programs programs = two_ranks();
  StepProgram& program = programs[0];
  const auto loss = find(program, {OpKind::reduce_start, 0});
  move(program, find(program, {OpKind::reduce_loss}), loss);
  operation(program, {OpKind::reduce_start, 0}).needs = {static_cast<int>(loss)};
  expect_refused(programs, 0, "reduce_loss over loss", "a cycle of waits");
}

}  // namespace
}  // namespace stepforge::testing
