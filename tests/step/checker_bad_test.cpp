// Each test damages a good program in one way and names the rank, the operation and the reason of the
// refusal.
#include <gtest/gtest.h>

#include "tests/step/programs.h"

namespace stepforge::test {
namespace {

StepProgram plain(int micro_batches = 2, bool ordered = false) {
  StepOptions options = small_options(micro_batches);
  options.ordered = ordered;
  return build_step(small_model(), options);
}

StepProgram gathered() {
  StepOptions options = small_options(1);
  options.gather = {DType::bf16, GatherPolicy::Reshard::always, 0};
  return build_step(small_model(), options);
}

Programs two_ranks() {
  StepOptions options = small_options();
  return sharded(2, 1, 1, options);
}

Operation& operation(StepProgram& program, const Place& place) {
  return program.operations[find(program, place)];
}

// ---- fields ----

TEST(CheckerRefuses, RanksOutOfOrder) {
  Programs programs = two_ranks();
  programs[1].rank = 0;
  expect_refused(programs, 0, "end of the program", "stands at place 1");
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

TEST(CheckerRefuses, NeedOfALaterOperation) {
  StepProgram program = plain();
  const auto at = find(program, {OpKind::forward});
  program.operations[at].needs = {static_cast<int>(at) + 3};
  expect_refused({program}, 0, "forward embedding m0",
                 format("needs operation {}, which is not an earlier", at + 3));
}

TEST(CheckerRefuses, NeedOfItself) {
  StepProgram program = plain();
  const auto at = find(program, {OpKind::forward});
  program.operations[at].needs = {static_cast<int>(at)};
  expect_refused({program}, 0, "forward embedding m0", "not an earlier one");
}

TEST(CheckerRefuses, MessageToItself) {
  Programs programs = pipeline_1f1b(1);
  operation(programs[1], {OpKind::send}).peer = 1;
  expect_refused(programs, 1, "send layers.1 m0", "nothing to itself");
}

TEST(CheckerRefuses, GroupWithoutItsRank) {
  Programs programs = two_ranks();
  programs[1].groups[0].ranks = {0};
  expect_refused(programs, 1, "end of the program", "not a member of its group dp_shard {0}");
}

TEST(CheckerRefuses, ReductionOverAnotherGroup) {
  Programs programs = two_ranks();
  operation(programs[0], {OpKind::reduce_start}).group = 1;
  expect_refused(programs, 0, "reduce_start head", "the unit's group is dp_shard {0, 1}");
}

// ---- computation ----

TEST(CheckerRefuses, ForwardBeforeItsInput) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::forward, -1, 2}), find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward layers.1 m0", "its input is missing");
}

TEST(CheckerRefuses, ForwardBeforeItsBatch) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::load_batch}), find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward embedding m0", "micro-batch 0 has not been loaded");
}

TEST(CheckerRefuses, ForwardTwice) {
  StepProgram program = plain();
  repeat(program, find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "already done by operation");
}

TEST(CheckerRefuses, BackwardWithoutGraph) {
  StepProgram program = plain();
  operation(program, {OpKind::forward, -1, 1}).keep_graph = false;
  expect_refused({program}, 0, "backward layers.0 m0", "graph is missing");
}

TEST(CheckerRefuses, BackwardTwice) {
  StepProgram program = plain();
  repeat(program, find(program, {OpKind::backward, -1, 1}));
  expect_refused({program}, 0, "backward layers.0 m0", "already done by operation");
}

TEST(CheckerRefuses, BackwardBeforeTheBlockAbove) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::backward, -1, 1}), find(program, {OpKind::backward, -1, 2}));
  expect_refused({program}, 0, "backward layers.0 m0", "gradient of its result is missing");
}

TEST(CheckerRefuses, DroppedBackward) {
  StepProgram program = plain();
  erase(program, find(program, {OpKind::backward, -1, 0, 1}));
  expect_refused({program}, 0, "forward embedding m1 graph", "no backward uses its graph");
}

TEST(CheckerRefuses, DroppedMicroBatch) {
  StepProgram program = plain(3);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    if (program.operations[i].micro_batch != 1) {
      order.push_back(i);
    }
  }
  rearrange(program, order);
  expect_refused({program}, 0, "end of the program", "block embedding never runs on micro-batch 1");
}

TEST(CheckerRefuses, RecomputationOfWhatWasKept) {
  StepProgram program = plain();
  Operation again = operation(program, {OpKind::backward, -1, 1});
  again.kind = OpKind::recompute;
  again.allocates.clear();
  again.frees.clear();
  insert_operations(program.operations, {{find(program, {OpKind::backward, -1, 1}), again}});
  expect_refused({program}, 0, "recompute layers.0 m0", "graph already comes from");
}

TEST(CheckerRefuses, RecomputationThatNothingUses) {
  StepOptions options = small_options(1);
  options.recompute.mode = RecomputePolicy::Mode::full;
  ModelSpec model = small_model();
  StepProgram program = build_step(model, options);
  erase(program, find(program, {OpKind::backward, -1, 1}));
  erase(program, find(program, {OpKind::backward, -1, 0}));
  expect_refused({program}, 0, "forward embedding m0 graph", "no backward uses its graph");
}

TEST(CheckerRefuses, LossOfTrainingInAnEvaluation) {
  StepOptions options = small_options(1);
  options.kind = ProgramKind::evaluate;
  StepProgram program = build_step(small_model(), options);
  operation(program, {OpKind::loss}).kind = OpKind::loss_forward_backward;
  expect_refused({program}, 0, "loss_forward_backward head m0", "program of kind evaluate");
}

TEST(CheckerRefuses, UpdateInAnEvaluation) {
  StepOptions options = small_options(1);
  options.kind = ProgramKind::evaluate;
  StepProgram program = build_step(small_model(), options);
  Operation update;
  update.kind = OpKind::update;
  update.unit = 0;
  program.operations.push_back(update);
  expect_refused({program}, 0, "update embedding", "program of kind evaluate");
}

TEST(CheckerRefuses, QueuedWeightGradientThatNeverComes) {
  StepProgram program = plain();
  operation(program, {OpKind::backward, -1, 1}).kind = OpKind::backward_input;
  expect_refused({program}, 0, "backward_input layers.0 m0", "weight gradient it queued is never computed");
}

TEST(CheckerRefuses, WeightGradientThatNothingQueued) {
  StepProgram program = plain();
  operation(program, {OpKind::backward, -1, 1}).kind = OpKind::backward_weight;
  expect_refused({program}, 0, "backward_weight layers.0 m0", "no backward_input has queued it");
}

// ---- gathered units ----

TEST(CheckerRefuses, MissingGather) {
  StepProgram program = gathered();
  erase(program, find(program, {OpKind::gather_wait, 1}));
  erase(program, find(program, {OpKind::gather_start, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "unit layers.0 is not gathered");
}

TEST(CheckerRefuses, GatherWaitWithoutStart) {
  StepProgram program = gathered();
  erase(program, find(program, {OpKind::gather_start, 1}));
  expect_refused({program}, 0, "gather_wait layers.0", "no gather_start of the unit is under way");
}

TEST(CheckerRefuses, UseBeforeGatherWait) {
  StepProgram program = gathered();
  move(program, find(program, {OpKind::forward, -1, 1}), find(program, {OpKind::gather_wait, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "not gathered yet");
}

TEST(CheckerRefuses, UseAfterRelease) {
  StepProgram program = gathered();
  move(program, find(program, {OpKind::release, 1}), find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "(release layers.0) gave it back");
}

TEST(CheckerRefuses, MissingRelease) {
  StepProgram program = gathered();
  erase(program, find(program, {OpKind::release, 3}));
  expect_refused({program}, 0, "update head", "would be stale");
}

TEST(CheckerRefuses, MissingReleaseInAnEvaluation) {
  StepOptions options = small_options(1);
  options.kind = ProgramKind::evaluate;
  options.gather.dtype = DType::bf16;
  StepProgram program = build_step(small_model(), options);
  erase(program, find(program, {OpKind::release, 3}));
  expect_refused({program}, 0, "gather_start head", "unit head is never released");
}

TEST(CheckerRefuses, GatherOfAGatheredUnit) {
  StepProgram program = gathered();
  erase(program, find(program, {OpKind::release, 1}));
  expect_refused({program}, 0, "gather_start layers.0", "already gathered by");
}

TEST(CheckerRefuses, GatherOfAResidentUnit) {
  StepProgram program = gathered();
  program.units[1].resident = true;
  expect_refused({program}, 0, "gather_start layers.0", "resident");
}

TEST(CheckerRefuses, GatherWaitThatDoesNotNeedItsStart) {
  StepProgram program = gathered();
  operation(program, {OpKind::gather_wait, 1}).needs.clear();
  expect_refused({program}, 0, "gather_wait layers.0", "may run before operation");
}

// ---- gradients and updates ----

TEST(CheckerRefuses, GradientThatWasNotStarted) {
  StepProgram program = plain();
  erase(program, find(program, {OpKind::start_gradient, 3}));
  expect_refused({program}, 0, "loss_forward_backward head m0", "gradient of unit head has not been started");
}

TEST(CheckerRefuses, StartThatDropsAGradient) {
  StepProgram program = plain();
  insert_operations(program.operations, {{find(program, {OpKind::load_batch, -1, -1, 1}),
                                          operation(program, {OpKind::start_gradient, 1})}});
  expect_refused({program}, 0, "start_gradient layers.0",
                 "drops the gradient of block layers.0 on micro-batch 0");
}

TEST(CheckerRefuses, LostStash) {
  StepProgram program = plain(2, true);
  erase(program, find(program, {OpKind::add_gradient, 1}));
  expect_refused({program}, 0, "gradient_norm",
                 "unit layers.0: the gradient stashed at level 0 was never added");
}

TEST(CheckerRefuses, StashIntoAFullLevel) {
  StepProgram program = plain(4, true);
  erase(program, find(program, {OpKind::add_gradient, 1}));
  for (Operation& at : program.operations) {
    if (at.kind == OpKind::stash_gradient && at.unit == 1) {
      at.level = 0;
    }
  }
  expect_refused({program}, 0, "stash_gradient layers.0 level 0",
                 "still holds the gradient of block layers.0");
}

TEST(CheckerRefuses, AdditionOfAnEmptyLevel) {
  StepProgram program = plain(2, true);
  const auto stash = find(program, {OpKind::stash_gradient, 1});
  erase(program, find(program, {OpKind::start_gradient, 1}, stash));
  erase(program, stash);
  expect_refused({program}, 0, "add_gradient layers.0 level 0", "holds no gradient");
}

TEST(CheckerRefuses, ContributionTwice) {
  StepProgram program = plain();
  program.blocks[1].units = {1, 1};
  expect_refused({program}, 0, "gradient_norm", "block layers.0 on micro-batch 0 was added twice");
}

TEST(CheckerRefuses, MissingContributionOfATiedBlock) {
  StepProgram program = build_step(small_model(2, true), small_options(1));
  // The embedding is not run backward, as if only the head used the tied matrix.
  erase(program, find(program, {OpKind::backward, -1, 0}));
  operation(program, {OpKind::forward, -1, 0}).keep_graph = false;
  expect_refused({program}, 0, "gradient_norm",
                 "the gradient of block embedding on micro-batch 0 is missing");
}

TEST(CheckerRefuses, DoubleReduction) {
  Programs programs = two_ranks();
  for (StepProgram& program : programs) {
    repeat(program, find(program, {OpKind::reduce_start, 1}));
  }
  expect_refused(programs, 0, "reduce_start layers.0", "already reduced by");
}

TEST(CheckerRefuses, MissingReduction) {
  Programs programs = two_ranks();
  for (StepProgram& program : programs) {
    erase(program, find(program, {OpKind::reduce_wait, 1}));
    erase(program, find(program, {OpKind::reduce_start, 1}));
  }
  expect_refused(programs, 0, "gradient_norm",
                 "unit layers.0: its gradient has not been reduced over dp_shard {0, 1}");
}

TEST(CheckerRefuses, NormBeforeTheReductionEnds) {
  Programs programs = two_ranks();
  erase(programs[1], find(programs[1], {OpKind::reduce_wait, 2}));
  expect_refused(programs, 1, "gradient_norm", "unit layers.1: its gradient is still being reduced");
}

TEST(CheckerRefuses, ReduceWaitWithoutStart) {
  Programs programs = two_ranks();
  erase(programs[0], find(programs[0], {OpKind::reduce_start, 1}));
  expect_refused(programs, 0, "reduce_wait layers.0", "no reduction of the unit is under way");
}

TEST(CheckerRefuses, ReductionBeforeTheLastContribution) {
  Programs programs = sharded(2, 1, 2, small_options());
  move(programs[0], find(programs[0], {OpKind::reduce_start, 1}),
       find(programs[0], {OpKind::backward, -1, 1, 1}));
  expect_refused(programs, 0, "backward layers.0 m1", "already been reduced by");
}

TEST(CheckerRefuses, ReductionThatDoesNotNeedTheBackward) {
  Programs programs = two_ranks();
  for (Operation& at : programs[0].operations) {
    if (at.kind == OpKind::reduce_start) {
      at.needs.clear();
    }
  }
  expect_refused(programs, 0, "reduce_start head", "may run before operation");
}

TEST(CheckerRefuses, MissingAllReduceOverReplicas) {
  Programs programs = sharded(2, 2, 1, small_options());
  for (StepProgram& program : programs) {
    erase(program, find(program, {OpKind::all_reduce_wait, 0}));
    erase(program, find(program, {OpKind::all_reduce_start, 0}));
  }
  expect_refused(programs, 0, "gradient_norm", "has not been all-reduced over dp_replicate {0, 2}");
}

TEST(CheckerRefuses, AllReduceBeforeTheShardsReduction) {
  Programs programs = sharded(2, 2, 1, small_options());
  move(programs[3], find(programs[3], {OpKind::all_reduce_start, 1}),
       find(programs[3], {OpKind::reduce_wait, 1}));
  expect_refused(programs, 3, "all_reduce_start layers.0", "must have finished first");
}

TEST(CheckerRefuses, UpdateBeforeTheNorm) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::update, 0}), find(program, {OpKind::gradient_norm}));
  expect_refused({program}, 0, "update embedding", "have not been measured");
}

TEST(CheckerRefuses, UpdateBeforeTheFinitenessCheck) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::update, 0}), find(program, {OpKind::check_finite}));
  expect_refused({program}, 0, "update embedding", "have not been checked to be finite");
}

TEST(CheckerRefuses, FinitenessCheckBeforeTheNorm) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::check_finite}), find(program, {OpKind::gradient_norm}));
  expect_refused({program}, 0, "check_finite", "have not been measured");
}

TEST(CheckerRefuses, NormTwice) {
  StepProgram program = plain();
  repeat(program, find(program, {OpKind::gradient_norm}));
  expect_refused({program}, 0, "gradient_norm", "already measured by");
}

TEST(CheckerRefuses, UpdateTwice) {
  StepProgram program = plain();
  repeat(program, find(program, {OpKind::update, 2}));
  expect_refused({program}, 0, "update layers.1", "already updated by");
}

TEST(CheckerRefuses, MissingUpdate) {
  StepProgram program = plain();
  erase(program, find(program, {OpKind::update, 2}));
  expect_refused({program}, 0, "end of the program", "unit layers.1 is never updated");
}

TEST(CheckerRefuses, UpdateOfAFrozenUnit) {
  ModelSpec model = small_model();
  model.units[0].trainable = false;
  StepProgram program = build_step(model, small_options(1));
  Operation update = program.operations.back();
  update.unit = 0;
  program.operations.push_back(update);
  expect_refused({program}, 0, "update embedding", "unit embedding is frozen");
}

TEST(CheckerRefuses, BackwardAfterTheNorm) {
  StepProgram program = plain(1);
  move(program, find(program, {OpKind::backward, -1, 0}), find(program, {OpKind::check_finite}));
  expect_refused({program}, 0, "gradient_norm", "block embedding on micro-batch 0 is missing");
}

// ---- buffers ----

TEST(CheckerRefuses, LeakedActivation) {
  StepProgram program = plain();
  std::erase(operation(program, {OpKind::backward, -1, 1}).frees,
             operation(program, {OpKind::forward, -1, 0}).allocates.front());
  expect_refused({program}, 0, "forward embedding m0", "buffer bundle embedding m0 leaks");
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
  expect_refused({program}, 0, "backward layers.0 m0", "buffer bundle embedding m0 was freed by");
}

TEST(CheckerRefuses, UseAfterFreeEvenIfTheUseIsNotListed) {
  StepProgram program = plain();
  const int graph = operation(program, {OpKind::forward, -1, 0}).allocates.back();
  Operation& backward = operation(program, {OpKind::backward, -1, 0});
  std::erase(backward.reads, graph);
  std::erase(backward.frees, graph);
  operation(program, {OpKind::backward, -1, 1}).frees.push_back(graph);
  expect_refused({program}, 0, "backward embedding m0", "buffer graph embedding m0 was freed by");
}

TEST(CheckerRefuses, AllocationTwice) {
  StepProgram program = plain();
  Operation& load = operation(program, {OpKind::load_batch, -1, -1, 1});
  load.allocates.push_back(operation(program, {OpKind::load_batch}).allocates.front());
  expect_refused({program}, 0, "load_batch m1", "was already allocated by");
}

TEST(CheckerRefuses, ReadBeforeAllocation) {
  StepProgram program = plain();
  operation(program, {OpKind::load_batch}).reads = operation(program, {OpKind::forward}).allocates;
  expect_refused({program}, 0, "load_batch m0", "is not allocated");
}

TEST(CheckerRefuses, FreeingAPersistentBuffer) {
  StepProgram program = plain();
  operation(program, {OpKind::update}).frees.push_back(0);
  expect_refused({program}, 0, "update embedding", "is persistent");
}

TEST(CheckerRefuses, BufferThatNothingAllocates) {
  StepProgram program = plain();
  program.buffers.push_back({"spare", BufferKind::bundle, 1, false});
  expect_refused({program}, 0, "end of the program", "buffer spare is never allocated");
}

// ---- messages ----

TEST(CheckerRefuses, SizesThatDiffer) {
  Programs programs = pipeline_1f1b(2);
  operation(programs[0], {OpKind::send, -1, -1, 1}).bytes = 32;
  expect_refused(programs, 1, "receive layers.1 m1", "expects 64 bytes, but rank 0, operation");
}

TEST(CheckerRefuses, TagsThatDiffer) {
  Programs programs = pipeline_1f1b(2);
  operation(programs[1], {OpKind::send, -1, -1, 1}).tag = 7;
  expect_refused(programs, 0, "receive layers.0 m1", "expects tag 3");
}

TEST(CheckerRefuses, MessagesThatOvertake) {
  Programs programs = pipeline_1f1b(3);
  const auto first = find(programs[0], {OpKind::send, -1, -1, 1});
  const auto second = find(programs[0], {OpKind::send, -1, -1, 2});
  move(programs[0], first, second + 1);
  expect_refused(programs, 1, "receive layers.1 m1", "expects tag 2");
}

TEST(CheckerRefuses, SendThatNobodyReceives) {
  Programs programs = pipeline_1f1b(1);
  const auto send = find(programs[0], {OpKind::send});
  insert_operations(programs[0].operations, {{send + 1, programs[0].operations[send]}});
  programs[0].operations[send].frees.clear();
  expect_refused(programs, 0, "send layers.0 m0", "rank 1 never receives it");
}

TEST(CheckerRefuses, ReceiveThatNobodySends) {
  Programs programs = pipeline_1f1b(1);
  const auto send = find(programs[0], {OpKind::send});
  operation(programs[0], {OpKind::forward, -1, 1}).frees = programs[0].operations[send].frees;
  erase(programs[0], send);
  expect_refused(programs, 1, "receive layers.1 m0", "rank 0 never sends it");
}

TEST(CheckerRefuses, InputThatWasNotReceived) {
  Programs programs = pipeline_1f1b(2);
  erase(programs[1], find(programs[1], {OpKind::receive, -1, -1, 1}));
  expect_refused(programs, 1, "forward layers.1 m1", "its input is missing");
}

TEST(CheckerRefuses, SendOfWhatIsNotComputed) {
  Programs programs = pipeline_1f1b(1);
  move(programs[0], find(programs[0], {OpKind::send}), find(programs[0], {OpKind::forward, -1, 1}));
  expect_refused(programs, 0, "send layers.0 m0", "has not been computed");
}

TEST(CheckerRefuses, ComputationThatDoesNotNeedTheReceive) {
  Programs programs = pipeline_1f1b(1);
  operation(programs[1], {OpKind::forward}).needs.clear();
  expect_refused(programs, 1, "forward layers.1 m0", "on lane peer, and no need leads to it");
}

TEST(CheckerRefuses, SendThatDoesNotNeedTheComputation) {
  Programs programs = pipeline_1f1b(1);
  operation(programs[0], {OpKind::send}).needs.clear();
  expect_refused(programs, 0, "send layers.0 m0", "on lane compute, and no need leads to it");
}

TEST(CheckerRefuses, CrossedSendAndReceiveThatDeadlock) {
  Programs programs = pipeline_1f1b(2);
  // Rank 0 waits for the gradient of micro-batch 0 before it sends micro-batch 0.
  StepProgram& program = programs[0];
  move(program, find(program, {OpKind::receive, -1, -1, 0}), find(program, {OpKind::send, -1, -1, 0}));
  expect_refused(programs, 0, "receive layers.0 m0", "rank 1 at operation");
}

// ---- collectives ----

TEST(CheckerRefuses, CollectivesInAnotherOrder) {
  StepOptions options = small_options();
  options.reduce.in_flight = 4;
  Programs programs = sharded(2, 1, 1, options);
  StepProgram& program = programs[1];
  move(program, find(program, {OpKind::reduce_start, 3}), find(program, {OpKind::reduce_start, 2}) + 1);
  expect_refused(programs, 1, "reduce_start layers.1", "is another one than rank 0, operation");
}

TEST(CheckerRefuses, CollectiveThatOneRankLacks) {
  StepOptions options = small_options();
  options.gather.reshard = GatherPolicy::Reshard::always;
  Programs programs = sharded(2, 1, 1, options);
  options.gather.reshard = GatherPolicy::Reshard::never;
  programs[1] = sharded(2, 1, 1, options)[1];
  expect_refused(programs, 1, "reduce_start layers.1", "is another one than rank 0, operation");
}

TEST(CheckerRefuses, LastCollectiveThatOneRankLacks) {
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
  expect_refused(programs, 0, "gather_start layers.0 over dp_shard", "has no partner on rank 1");
}

TEST(CheckerRefuses, CollectivesOfOtherSizes) {
  Programs programs = two_ranks();
  Operation& gather = operation(programs[1], {OpKind::gather_start, 2});
  gather.bytes = 1;
  programs[1].units[2].gathered_bytes = 1;
  expect_refused(programs, 1, "gather_start layers.1", "has 1 bytes, but rank 0, operation");
}

TEST(CheckerRefuses, GroupOnWhichRanksDisagree) {
  Programs programs = sharded(2, 2, 1, small_options());
  programs[1].groups[0].ranks = {0, 1, 2};
  expect_refused(programs, 0, "gather_start embedding over dp_shard",
                 "rank 1 is a member of dp_shard {0, 1} here");
}

TEST(CheckerRefuses, GroupsWhoseOrderMakesACycle) {
  Programs programs = two_ranks();
  StepProgram& program = programs[1];
  move(program, find(program, {OpKind::reduce_loss}), find(program, {OpKind::check_finite}));
  expect_refused(programs, 0, "reduce_loss over loss", "waits for rank 1 to join; rank 1 at operation");
}

TEST(CheckerRefuses, CycleThroughTwoLanes) {
  // Rank 0 begins its last reduction only after the loss is reduced; rank 1 the other way round.
  Programs programs = two_ranks();
  StepProgram& program = programs[0];
  const auto loss = find(program, {OpKind::reduce_start, 0});
  move(program, find(program, {OpKind::reduce_loss}), loss);
  operation(program, {OpKind::reduce_start, 0}).needs = {static_cast<int>(loss)};
  expect_refused(programs, 0, "reduce_loss over loss", "a cycle of waits");
}

}  // namespace
}  // namespace stepforge::test
