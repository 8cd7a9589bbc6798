// SPDX-License-Identifier: Apache-2.0
// Each test damages a sound program in one way; the checker must name the rank, the operation and the reason.
// Fields, computation, buffers.
#include <gtest/gtest.h>

#include "tests/step/good_programs.h"

namespace stepforge::testing {
namespace {

// ---- fields ----

TEST(CheckerRefuses, RanksOutOfOrder) {
  Programs programs = two_ranks();
  programs[1].rank = 0;
  expect_refused(programs, 0, "end of the program", "so its rank must be 1");
}

TEST(CheckerRefuses, BufferThatDoesNotExist) {
  StepProgram program = plain();
  operation(program, {OpKind::forward}).reads.push_back(10000);
  expect_refused({program}, 0, "forward embedding m0", "buffer 10000 does not exist");
}

TEST(CheckerRefuses, MicroBatchThatDoesNotExist) {
  StepProgram program = plain(2);
  operation(program, {OpKind::backward}).micro_batch = 2;
  expect_refused({program}, 0, "backward layers.1 m2", "micro-batch 2 does not exist");
}

TEST(CheckerRefuses, DependencyOnALaterOperation) {
  StepProgram program = plain();
  const auto at = find(program, {OpKind::forward});
  program.operations[at].needs = {static_cast<int>(at) + 3};
  expect_refused({program}, 0, "forward embedding m0",
                 format("needs operation {}, which is not an earlier", at + 3));
}

TEST(CheckerRefuses, DependencyOnItself) {
  StepProgram program = plain();
  const auto at = find(program, {OpKind::forward});
  program.operations[at].needs = {static_cast<int>(at)};
  expect_refused({program}, 0, "forward embedding m0", "not an earlier one");
}

TEST(CheckerRefuses, MessageToItself) {
  Programs programs = pipeline_1f1b(1);
  operation(programs[1], {OpKind::send_gradient}).peer = 1;
  expect_refused(programs, 1, "send_gradient layers.1 m0", "cannot send to itself");
}

TEST(CheckerRefuses, GroupWithoutItsOwnRank) {
  Programs programs = two_ranks();
  programs[1].groups[0].ranks = {0};
  expect_refused(programs, 1, "end of the program", "not a member of its group fsdp {0}");
}

TEST(CheckerRefuses, ReductionOverAnotherGroup) {
  Programs programs = two_ranks();
  operation(programs[0], {OpKind::reduce_start}).group = 1;
  expect_refused(programs, 0, "reduce_start head", "it runs over loss {0, 1}, but must run over fsdp {0, 1}");
}

// ---- computation ----

TEST(CheckerRefuses, ForwardBeforeItsInput) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::forward, -1, 2}), find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward layers.1 m0",
                 "value layers.0 on micro-batch 0 has not been computed or received");
}

TEST(CheckerRefuses, ForwardBeforeItsBatch) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::load_batch}), find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward embedding m0", "micro-batch 0 has not been loaded");
}

TEST(CheckerRefuses, ForwardTwice) {
  StepProgram program = plain();
  repeat(program, find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "block layers.0 on micro-batch 0 was already run");
}

TEST(CheckerRefuses, BackwardWithoutGraph) {
  StepProgram program = plain();
  operation(program, {OpKind::forward, -1, 1}).keep_graph = false;
  expect_refused({program}, 0, "backward layers.0 m0",
                 "the graph of block layers.0 on micro-batch 0 has not been kept or recomputed");
}

TEST(CheckerRefuses, BackwardTwice) {
  StepProgram program = plain();
  repeat(program, find(program, {OpKind::backward, -1, 1}));
  expect_refused({program}, 0, "backward layers.0 m0",
                 "the graph of block layers.0 on micro-batch 0 was already used");
}

TEST(CheckerRefuses, BackwardBeforeTheBlockAbove) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::backward, -1, 1}), find(program, {OpKind::backward, -1, 2}));
  expect_refused({program}, 0, "backward layers.0 m0",
                 "the gradient of value layers.0 on micro-batch 0 has not been computed or received");
}

TEST(CheckerRefuses, DroppedBackward) {
  StepProgram program = plain();
  erase(program, find(program, {OpKind::backward, -1, 0, 1}));
  expect_refused({program}, 0, "gradient_norm",
                 "unit embedding: the gradient of block embedding on micro-batch 1 is missing");
}

TEST(CheckerRefuses, DroppedMicroBatch) {
  StepProgram program = plain(3);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < program.operations.size(); ++i)
    if (program.operations[i].micro_batch != 1) order.push_back(i);
  rearrange(program, order);
  expect_refused({program}, 0, "gradient_norm",
                 "unit embedding: the gradient of block embedding on micro-batch 1 is missing");
}

TEST(CheckerRefuses, RecomputationOfAKeptGraph) {
  StepProgram program = plain();
  Operation again = operation(program, {OpKind::backward, -1, 1});
  again.kind = OpKind::recompute;
  again.allocates.clear();
  again.frees.clear();
  insert_operations(program.operations, {{find(program, {OpKind::backward, -1, 1}), again}});
  expect_refused({program}, 0, "recompute layers.0 m0", "was already kept or recomputed by operation");
}

TEST(CheckerRefuses, RecomputationThatIsNotUsed) {
  RankOptions options = small_options(1);
  options.recompute.mode = RecomputeMode::full;
  ModelSpec model = small_model();
  StepProgram program = build_step(model, options);
  erase(program, find(program, {OpKind::backward, -1, 1}));
  erase(program, find(program, {OpKind::backward, -1, 0}));
  expect_refused({program}, 0, "gradient_norm",
                 "unit embedding: the gradient of block embedding on micro-batch 0 is missing");
}

TEST(CheckerRefuses, TrainingLossInAnEvaluation) {
  RankOptions options = small_options(1);
  options.kind = ProgramKind::evaluate;
  StepProgram program = build_step(small_model(), options);
  operation(program, {OpKind::loss}).kind = OpKind::loss_forward_backward;
  expect_refused({program}, 0, "loss_forward_backward head m0", "program of kind evaluate");
}

TEST(CheckerRefuses, UpdateInAnEvaluation) {
  RankOptions options = small_options(1);
  options.kind = ProgramKind::evaluate;
  StepProgram program = build_step(small_model(), options);
  Operation update;
  update.kind = OpKind::update;
  update.unit = 0;
  program.operations.push_back(update);
  expect_refused({program}, 0, "update embedding", "program of kind evaluate");
}

TEST(CheckerRefuses, QueuedWeightGradientThatIsNeverComputed) {
  StepProgram program = plain();
  operation(program, {OpKind::backward, -1, 1}).kind = OpKind::backward_input;
  expect_refused({program}, 0, "gradient_norm",
                 "unit layers.0: the gradient of block layers.0 on micro-batch 0 is missing");
}

TEST(CheckerRefuses, WeightGradientThatWasNotQueued) {
  StepProgram program = plain();
  operation(program, {OpKind::backward, -1, 1}).kind = OpKind::backward_weight;
  expect_refused({program}, 0, "backward_weight layers.0 m0",
                 "the weight gradient of block layers.0 on micro-batch 0 has not been queued");
}

// ---- buffers ----

TEST(CheckerRefuses, LeakedActivation) {
  StepProgram program = plain();
  std::erase(operation(program, {OpKind::backward, -1, 1}).frees,
             operation(program, {OpKind::forward, -1, 0}).allocates.front());
  expect_refused({program}, 0, "forward embedding m0", "buffer bundle embedding m0 is never freed");
}

TEST(CheckerRefuses, DoubleFree) {
  StepProgram program = plain();
  operation(program, {OpKind::backward, -1, 0})
      .frees.push_back(operation(program, {OpKind::forward, -1, 1}).allocates.front());
  expect_refused({program}, 0, "backward embedding m0", "buffer bundle layers.0 m0 was already freed by");
}

TEST(CheckerRefuses, UseAfterFree) {
  StepProgram program = plain();
  const int bundle = operation(program, {OpKind::forward, -1, 0}).allocates.front();
  std::erase(operation(program, {OpKind::backward, -1, 1}).frees, bundle);
  operation(program, {OpKind::backward, -1, 2}).frees.push_back(bundle);
  expect_refused({program}, 0, "backward layers.0 m0", "buffer bundle embedding m0 was already freed");
}

TEST(CheckerRefuses, UseAfterFreeThatIsNotListed) {
  StepProgram program = plain();
  const int graph = operation(program, {OpKind::forward, -1, 0}).allocates.back();
  Operation& backward = operation(program, {OpKind::backward, -1, 0});
  std::erase(backward.reads, graph);
  std::erase(backward.frees, graph);
  operation(program, {OpKind::backward, -1, 1}).frees.push_back(graph);
  expect_refused({program}, 0, "backward embedding m0", "buffer graph embedding m0 was already freed");
}

TEST(CheckerRefuses, AllocatingTwice) {
  StepProgram program = plain();
  Operation& load = operation(program, {OpKind::load_batch, -1, -1, 1});
  load.allocates.push_back(operation(program, {OpKind::load_batch}).allocates.front());
  expect_refused({program}, 0, "load_batch m1", "buffer batch m0 was already freed");
}

TEST(CheckerRefuses, ReadBeforeAllocation) {
  StepProgram program = plain();
  operation(program, {OpKind::load_batch}).reads = operation(program, {OpKind::forward}).allocates;
  expect_refused({program}, 0, "load_batch m0", "buffer bundle embedding m0 has not been allocated");
}

TEST(CheckerRefuses, FreeingAPersistentBuffer) {
  StepProgram program = plain();
  operation(program, {OpKind::update}).frees.push_back(0);
  expect_refused({program}, 0, "update embedding", "is persistent");
}

TEST(CheckerRefuses, BufferThatIsNeverAllocated) {
  StepProgram program = plain();
  program.buffers.push_back({"spare", BufferKind::bundle, 1, false});
  expect_refused({program}, 0, "end of the program", "buffer spare is never allocated");
}

TEST(CheckerRefuses, OperationsInAProgramOfTheWrongKind) {
  const std::vector<std::pair<unsigned, ProgramKind>> wrong = {{kNeverTrains, ProgramKind::train},
                                                               {kTrains, ProgramKind::evaluate},
                                                               {kGenerates, ProgramKind::evaluate},
                                                               {kNeverGenerates, ProgramKind::generate}};
  for (const OpInfo& row : op_table::kRows) {
    for (const auto& [trait, kind] : wrong) {
      if ((row.traits & trait) == 0) continue;
      RankOptions options = small_options(1);
      options.kind = kind;
      StepProgram program = build_step(small_model(), options);
      Operation misplaced;
      misplaced.kind = row.kind;
      misplaced.lane = row.lane;
      program.operations.push_back(misplaced);
      expect_refused({program}, 0, std::string(row.name),
                     format("it does not belong in a program of kind {}", program_kind_name(kind)));
    }
  }
}

TEST(CheckerRefuses, OperationsWithoutTheFieldsOfTheirKind) {
  const std::vector<std::pair<unsigned, std::string>> fields = {
      {kHasBlock, "block -1 does not exist"},
      {kHasMicroBatch, "micro-batch -1 does not exist"},
      {kHasUnit, "unit -1 does not exist"},
      {kHasLevel, "level -1 does not exist"},
      {kHasPeer, "peer rank -1 does not exist"}};
  for (const OpInfo& row : op_table::kRows) {
    for (const auto& [trait, reason] : fields) {
      if ((row.traits & trait) == 0) continue;
      RankOptions options = small_options(1);
      if ((row.traits & kNeverTrains) != 0) options.kind = ProgramKind::evaluate;
      if ((row.traits & kGenerates) != 0) options.kind = ProgramKind::generate;
      StepProgram program = build_step(small_model(), options);
      Operation lacking;
      lacking.kind = row.kind;
      lacking.lane = row.lane;
      lacking.unit = lacking.block = lacking.micro_batch = lacking.level = lacking.peer = 0;
      lacking.group = -1;
      if (trait == kHasBlock) lacking.block = -1;
      if (trait == kHasMicroBatch) lacking.micro_batch = -1;
      if (trait == kHasUnit) lacking.unit = -1;
      if (trait == kHasLevel) lacking.level = -1;
      if (trait == kHasPeer) lacking.peer = -1;
      program.operations.push_back(lacking);
      expect_refused({program}, 0, std::string(row.name), reason);
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
