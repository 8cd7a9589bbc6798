// SPDX-License-Identifier: Apache-2.0
// Each test damages a sound program in one way; the checker must name the rank, the operation and the reason.
// Units that are gathered, reduced and updated.
#include <gtest/gtest.h>

#include "tests/step/good_programs.h"

namespace stepforge::testing {
namespace {

// ---- gathered units ----

TEST(CheckerRefuses, MissingGather) {
  StepProgram program = gathered();
  erase(program, find(program, {OpKind::gather_wait, 1}));
  erase(program, find(program, {OpKind::gather_start, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "unit layers.0 has not been gathered");
}

TEST(CheckerRefuses, GatherWaitWithoutStart) {
  StepProgram program = gathered();
  erase(program, find(program, {OpKind::gather_start, 1}));
  expect_refused({program}, 0, "gather_wait layers.0", "unit layers.0 has not been gathered");
}

TEST(CheckerRefuses, UseBeforeGatherWait) {
  StepProgram program = gathered();
  move(program, find(program, {OpKind::forward, -1, 1}), find(program, {OpKind::gather_wait, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "unit layers.0 is still being gathered");
}

TEST(CheckerRefuses, UseAfterRelease) {
  StepProgram program = gathered();
  move(program, find(program, {OpKind::release, 1}), find(program, {OpKind::forward, -1, 1}));
  expect_refused({program}, 0, "forward layers.0 m0", "unit layers.0 was released");
}

TEST(CheckerRefuses, BackwardThatReadsReleasedWeights) {
  StepProgram program = gathered();
  program.blocks[0].weights_in_backward = true;
  expect_refused({program}, 0, "backward embedding m0", "unit embedding was released");
}

TEST(CheckerRefuses, MissingRelease) {
  StepProgram program = gathered();
  erase(program, find(program, {OpKind::release, 3}));
  expect_refused({program}, 0, "update head", "unit head was already gathered");
}

TEST(CheckerRefuses, MissingReleaseInAnEvaluation) {
  RankOptions options = small_options(1);
  options.kind = ProgramKind::evaluate;
  options.plan.gather = DType::bf16;
  StepProgram program = build_step(small_model(), options);
  erase(program, find(program, {OpKind::release, 3}));
  expect_refused({program}, 0, "gather_wait head", "unit head is never released");
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
                 "the gradient of unit layers.0 was already started");
}

TEST(CheckerRefuses, LostStash) {
  StepProgram program = plain(2, true);
  erase(program, find(program, {OpKind::add_gradient, 1}));
  expect_refused({program}, 0, "gradient_norm",
                 "unit layers.0: the gradient of block layers.0 on micro-batch 0 is missing");
}

TEST(CheckerRefuses, StashIntoAFullLevel) {
  StepProgram program = plain(4, true);
  erase(program, find(program, {OpKind::add_gradient, 1}));
  for (Operation& at : program.operations)
    if (at.kind == OpKind::stash_gradient && at.unit == 1) at.level = 0;
  expect_refused({program}, 0, "stash_gradient layers.0 level 0",
                 "level 0 of the gradient of unit layers.0 was already filled");
}

TEST(CheckerRefuses, AdditionOfAnEmptyLevel) {
  StepProgram program = plain(2, true);
  const auto stash = find(program, {OpKind::stash_gradient, 1});
  erase(program, find(program, {OpKind::start_gradient, 1}, stash));
  erase(program, stash);
  expect_refused({program}, 0, "add_gradient layers.0 level 0",
                 "level 0 of the gradient of unit layers.0 has not been filled");
}

TEST(CheckerRefuses, DoubleContribution) {
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
  for (StepProgram& program : programs) repeat(program, find(program, {OpKind::reduce_start, 1}));
  expect_refused(programs, 0, "reduce_start layers.0",
                 "the gradient of unit layers.0 is still being reduced");
}

TEST(CheckerRefuses, MissingReduction) {
  Programs programs = two_ranks();
  for (StepProgram& program : programs) {
    erase(program, find(program, {OpKind::reduce_wait, 1}));
    erase(program, find(program, {OpKind::reduce_start, 1}));
  }
  expect_refused(programs, 0, "gradient_norm", "the gradient of unit layers.0 has not been reduced");
}

TEST(CheckerRefuses, NormBeforeTheReductionEnds) {
  Programs programs = two_ranks();
  erase(programs[1], find(programs[1], {OpKind::reduce_wait, 2}));
  expect_refused(programs, 1, "gradient_norm", "the gradient of unit layers.1 is still being reduced");
}

TEST(CheckerRefuses, ReduceWaitWithoutStart) {
  Programs programs = two_ranks();
  erase(programs[0], find(programs[0], {OpKind::reduce_start, 1}));
  expect_refused(programs, 0, "reduce_wait layers.0", "the gradient of unit layers.0 has not been reduced");
}

TEST(CheckerRefuses, ReductionBeforeTheLastContribution) {
  Programs programs = sharded(2, 1, 2, small_options());
  move(programs[0], find(programs[0], {OpKind::reduce_start, 1}),
       find(programs[0], {OpKind::backward, -1, 1, 1}));
  expect_refused(programs, 0, "backward layers.0 m1", "the gradient of unit layers.0 is still being reduced");
}

TEST(CheckerRefuses, ReductionThatDoesNotNeedTheBackward) {
  Programs programs = two_ranks();
  for (Operation& at : programs[0].operations)
    if (at.kind == OpKind::reduce_start) at.needs.clear();
  expect_refused(programs, 0, "reduce_start head", "may run before operation");
}

TEST(CheckerRefuses, MissingAllReduceOverReplicas) {
  Programs programs = sharded(2, 2, 1, small_options());
  for (StepProgram& program : programs) {
    erase(program, find(program, {OpKind::all_reduce_wait, 0}));
    erase(program, find(program, {OpKind::all_reduce_start, 0}));
  }
  expect_refused(programs, 0, "gradient_norm", "the gradient of unit embedding has not been all-reduced");
}

TEST(CheckerRefuses, AllReduceBeforeTheShardsReduction) {
  Programs programs = sharded(2, 2, 1, small_options());
  move(programs[3], find(programs[3], {OpKind::all_reduce_start, 1}),
       find(programs[3], {OpKind::reduce_wait, 1}));
  expect_refused(programs, 3, "all_reduce_start layers.0",
                 "the gradient of unit layers.0 is still being reduced");
}

TEST(CheckerRefuses, UpdateBeforeTheNorm) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::update, 0}), find(program, {OpKind::gradient_norm}));
  expect_refused({program}, 0, "update embedding", "norm has not been computed");
}

TEST(CheckerRefuses, UpdateBeforeTheFinitenessCheck) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::update, 0}), find(program, {OpKind::check_finite}));
  expect_refused({program}, 0, "update embedding", "the step has not been checked to be finite");
}

TEST(CheckerRefuses, FinitenessCheckBeforeTheNorm) {
  StepProgram program = plain();
  move(program, find(program, {OpKind::check_finite}), find(program, {OpKind::gradient_norm}));
  expect_refused({program}, 0, "check_finite", "norm has not been computed");
}

TEST(CheckerRefuses, NormTwice) {
  StepProgram program = plain();
  repeat(program, find(program, {OpKind::gradient_norm}));
  expect_refused({program}, 0, "gradient_norm", "norm was already computed by");
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

}  // namespace
}  // namespace stepforge::testing
