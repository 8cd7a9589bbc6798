// SPDX-License-Identifier: Apache-2.0
// Faults planted in the programs of several ranks: the checker finds each and names rank, operation and
// reason.
#include <vector>

#include <gtest/gtest.h>

#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

RankOptions each_micro_batch() {
  RankOptions options = two_micro_batches();
  options.reduce.each_micro_batch = true;
  return options;
}

RankOptions ordered() {
  RankOptions options = two_micro_batches();
  options.ordered = true;
  return options;
}

RankOptions many_in_flight() {
  RankOptions options = two_micro_batches();
  options.reduce.in_flight = 4;
  return options;
}

std::vector<Fault> reduction_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  return {
      {"NoUnitIsReduced", fsdp, plain, kEveryRank,
       [](StepProgram& p) { erase_both(p, K::reduce_start, K::reduce_wait, 1); }, 0, "gradient_norm",
       "the gradient of unit layers.0 has not been reduced"},
      {"OneRankSkipsAReduction", fsdp, plain, 1,
       [](StepProgram& p) { erase_both(p, K::reduce_start, K::reduce_wait, 3); }, 1, "gradient_norm",
       "the gradient of unit head has not been reduced"},
      {"ReducedTwice", fsdp, plain, kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::reduce_start, 2})); }, 0, "reduce_start layers.1",
       "the gradient of unit layers.1 is still being reduced"},
      {"ReducedBeforeTheLastMicroBatch", fsdp, plain, kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::reduce_start, 2}), find(p, {K::backward, -1, 2, 1})); }, 0,
       "backward layers.1 m1", "the gradient of unit layers.1 is still being reduced"},
      {"OneRankReducesBeforeTheLastMicroBatch", fsdp, plain, 1,
       [](StepProgram& p) { move(p, find(p, {K::reduce_start, 2}), find(p, {K::backward, -1, 2, 1})); }, 1,
       "backward layers.1 m1", "the gradient of unit layers.1 is still being reduced"},
      {"ReductionDoesNotWaitForTheBackward", fsdp, plain, 1,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).needs.clear(); }, 1, "reduce_start layers.0",
       "may run before operation"},
      {"TheWaitDoesNotNeedItsReduction", fsdp, plain, 0,
       [](StepProgram& p) { at(p, {K::reduce_wait, 1}).needs.clear(); }, 0, "reduce_wait layers.0",
       "may run before operation"},
      {"NormDuringTheLastReduction", fsdp, plain, 1,
       [](StepProgram& p) { move(p, find(p, {K::reduce_wait, 0}), find(p, {K::check_finite})); }, 1,
       "gradient_norm", "the gradient of unit embedding is still being reduced"},
      {"ReducedOverTheReplicas", hsdp, plain, 2,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).group = kReplica; }, 2, "reduce_start layers.0",
       "it runs over dp_replicate {0, 2}, but must run over fsdp {2, 3}"},
      {"ReductionOnTheComputeLane", fsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).lane = Lane::compute; }, 0, "reduce_start layers.0",
       "on lane compute, not reduce"},
      {"OnlyTheShardIsSummed", fsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).bytes /= 2; }, 0, "reduce_start layers.0",
       "it moves 4096 bytes, but there are 8192"},
      {"ReducesAnotherUnitsGradient", fsdp, many_in_flight(), 1,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).reads = at(p, {K::reduce_start, 2}).reads; }, 1,
       "reduce_start layers.0", "it reads buffer whole_gradient layers.1, not whole_gradient layers.0"},
      {"FreesTheGradientWhileItIsReduced", fsdp, plain, 1,
       [](StepProgram& p) { std::swap(at(p, {K::reduce_start, 1}).frees, at(p, {K::reduce_wait, 1}).frees); },
       1, "reduce_wait layers.0", "buffer whole_gradient layers.0 was already freed"},
      {"WholeGradientIsNotFreed", fsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_wait, 1}).frees.clear(); }, 0, "start_gradient layers.0",
       "buffer whole_gradient layers.0 is never freed"},
      {"NoMemoryForTheWholeGradient", fsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::start_gradient, 1}).allocates.clear(); }, 0, "start_gradient layers.0",
       "it has no buffer for the gradient of unit layers.0"},
      {"GradientIsNotStarted", fsdp, plain, 0,
       [](StepProgram& p) { erase(p, find(p, {K::start_gradient, 3})); }, 0, "loss_forward_backward head m0",
       "gradient of unit head has not been started"},
      {"GradientIsStartedAnewInEachMicroBatch", fsdp, plain, 1,
       [](StepProgram& p) {
         const Operation start = at(p, {K::start_gradient, 1});
         insert_operations(p.operations, {{find(p, {K::backward, -1, 1, 1}), start}});
       },
       1, "start_gradient layers.0", "the gradient of unit layers.0 was already started"},
      {"AFrozenUnitIsReduced", fsdp, plain, kEveryRank, [](StepProgram& p) { p.units[0].trainable = false; },
       0, "start_gradient embedding", "unit embedding is frozen"},
      {"BackwardTwice", fsdp, plain, 1, [](StepProgram& p) { repeat(p, find(p, {K::backward, -1, 2, 0})); },
       1, "backward layers.1 m0", "the graph of block layers.1 on micro-batch 0 was already used"},
      {"UpdateBeforeTheReduction", fsdp, plain, 1,
       [](StepProgram& p) { move(p, find(p, {K::update, 3}), find(p, {K::reduce_wait, 3})); }, 1,
       "update head", "norm has not been computed"},
      {"UpdateIsMissing", hsdp, plain, 3, [](StepProgram& p) { erase(p, find(p, {K::update, 3})); }, 3,
       "end of the program", "unit head is never updated"},
  };
}

std::vector<Fault> gather_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  return {
      {"OnlyTheShardIsGathered", fsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gather_start, 1}).bytes /= 2; }, 0, "gather_start layers.0",
       "it moves 2048 bytes, but there are 4096"},
      {"OneRankGathersLess", fsdp, plain, 1,
       [](StepProgram& p) {
         p.units[1].gathered_bytes /= 2;
         for (Operation& operation : p.operations)
           if (operation.kind == K::gather_start && operation.unit == 1) operation.bytes /= 2;
       },
       1, "gather_start layers.0", "has 2048 bytes, but rank 0, operation"},
      {"NotGatheredAgainForTheBackward", fsdp, plain, kEveryRank,
       [](StepProgram& p) {
         erase(p, second(p, {K::gather_wait, 1}));
         erase(p, second(p, {K::gather_start, 1}));
       },
       0, "backward layers.0 m0", "unit layers.0 was released"},
      {"UsedWhileItIsGathered", fsdp, plain, 0,
       [](StepProgram& p) { erase(p, find(p, {K::gather_wait, 2})); }, 0, "forward layers.1 m0",
       "unit layers.1 is still being gathered"},
      {"TheGatherIsNotWaitedFor", fsdp, plain, 1,
       [](StepProgram& p) { at(p, {K::gather_wait, 2}).needs.clear(); }, 1, "gather_wait layers.1",
       "may run before operation"},
      {"ReleasedBeforeTheBackward", fsdp, plain, 1,
       [](StepProgram& p) { move(p, second(p, {K::release, 1}), find(p, {K::backward, -1, 1, 0})); }, 1,
       "backward layers.0 m0", "unit layers.0 was released"},
      {"NeverReleased", fsdp, plain, kEveryRank, [](StepProgram& p) { erase(p, find(p, {K::release, 2})); },
       0, "gather_start layers.1", "already gathered by"},
      {"GatheredCopyIsKeptOverTheUpdate", fsdp, plain, 1,
       [](StepProgram& p) {
         std::size_t last = find(p, {K::release, 0});
         for (std::size_t i = last; i < p.operations.size(); ++i)
           last = p.operations[i].kind == K::release && p.operations[i].unit == 0 ? i : last;
         erase(p, last);
       },
       1, "update embedding", "unit embedding was already gathered"},
      {"PrefetchIntoASlotInUse", fsdp, plain, 0,
       [](StepProgram& p) {
         for (Operation& operation : p.operations)
           if (operation.kind == K::gather_start) operation.needs.clear();
       },
       0, "gather_start layers.1", "may run before operation"},
      {"GatheredOverAllRanks", hsdp, plain, 1, [](StepProgram& p) { at(p, {K::gather_start, 1}).group = 2; },
       1, "gather_start layers.0", "it runs over loss {0, 1, 2, 3}, but must run over fsdp {0, 1}"},
      {"OneRankGathersInAnotherOrder", fsdp, plain, 1,
       [](StepProgram& p) { move(p, find(p, {K::gather_start, 2}), find(p, {K::gather_start, 1})); }, 1,
       "gather_start layers.1", "differs from rank 0, operation"},
      {"OneRankPrefetchesFurther", fsdp, plain, 1,
       [](StepProgram& p) {
         RankOptions options = two_micro_batches();
         options.gather.prefetch = 3;
         p = fsdp(options)[1];
       },
       1, "fsdp", "differs from rank 0, operation"},
      {"OneRankPrefetchesFurtherInTheBackward", fsdp, plain, 1,
       [](StepProgram& p) {
         RankOptions options = two_micro_batches();
         options.gather.prefetch.backward = 2;
         p = fsdp(options)[1];
       },
       1, "fsdp", "differs from rank 0, operation"},
      {"OneRankHasAnotherPrefetchList", fsdp, plain, 1,
       [](StepProgram& p) {
         RankOptions options = two_micro_batches();
         options.gather.prefetch.lists.push_back({"embedding", {"layers.1"}, {}});
         p = fsdp(options)[1];
       },
       1, "gather_start layers.1 over fsdp", "differs from rank 0, operation"},
      {"AGatheredUnitIsGatheredAgain", fsdp, plain, kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::gather_start, 2})); }, 0, "gather_start layers.1",
       "unit layers.1 is already being gathered"},
      {"OneRankNeverReshards", fsdp, plain, 1,
       [](StepProgram& p) {
         RankOptions options = two_micro_batches();
         options.gather.reshard = ReshardMode::never;
         p = fsdp(options)[1];
       },
       1, "fsdp", "differs from rank 0, operation"},
      {"OneRankHasMoreMicroBatches", fsdp, plain, 1,
       [](StepProgram& p) {
         RankOptions options = two_micro_batches();
         options.micro_batches = 3;
         p = fsdp(options)[1];
       },
       1, "fsdp", "differs from rank 0, operation"},
      {"OneRankFreezesAUnit", fsdp, plain, 1,
       [](StepProgram& p) {
         ModelSpec model = small_model();
         model.units[3].trainable = false;
         p = programs_of(model, 2, 1, two_micro_batches())[1];
       },
       1, "fsdp", "differs from rank 0, operation"},
      {"AShardedUnitIsMarkedResident", fsdp, plain, 1, [](StepProgram& p) { p.units[1].resident = true; }, 1,
       "end of the program", "unit layers.0 is sharded and must be gathered"},
  };
}

std::vector<Fault> loss_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  RankOptions evaluation = plain;
  evaluation.kind = ProgramKind::evaluate;
  return {
      {"LabelsAreNotCounted", fsdp, plain, kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::count_labels})); }, 0, "loss_forward_backward head m0",
       "the number of labels has not been summed"},
      {"LabelsAreCountedAfterTheFirstLoss", fsdp, plain, kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::count_labels}), find(p, {K::load_batch, -1, -1, 1})); }, 0,
       "loss_forward_backward head m0", "the number of labels has not been summed"},
      {"LabelsAreCountedPerReplica", hsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::count_labels}).group = kShard; }, 0, "count_labels over fsdp",
       "it runs over fsdp {0, 1}, but must run over loss {0, 1, 2, 3}"},
      {"LabelsAreCountedTwice", fsdp, plain, kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::count_labels})); }, 0, "count_labels",
       "the number of labels was already summed"},
      {"LossIsNotReduced", fsdp, plain, kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::reduce_loss})); }, 0, "check_finite",
       "the loss has not been reduced"},
      {"LossIsReducedBeforeTheLastMicroBatch", fsdp, plain, 1,
       [](StepProgram& p) { move(p, find(p, {K::reduce_loss}), find(p, {K::load_batch, -1, -1, 1})); }, 1,
       "loss_forward_backward head m1", "the loss was already reduced by"},
      {"LabelsOfAnEvaluationAreNotCounted", hsdp, evaluation, kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::count_labels})); }, 0, "loss head m0",
       "the number of labels has not been summed"},
      {"LossOfAnEvaluationIsNeverReduced", hsdp, evaluation, kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::reduce_loss})); }, 0, "end of the program",
       "the loss is never reduced"},
      {"LossOfAnEvaluationIsReducedBeforeItIsComputed", hsdp, evaluation, kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::reduce_loss}), find(p, {K::loss})); }, 0, "loss head m0",
       "the loss was already reduced"},
      {"LossIsReducedTwice", hsdp, plain, 2, [](StepProgram& p) { repeat(p, find(p, {K::reduce_loss})); }, 2,
       "reduce_loss", "the loss was already reduced by"},
      {"LossIsReducedAfterTheCheck", fsdp, plain, 0,
       [](StepProgram& p) { move(p, find(p, {K::reduce_loss}), find(p, {K::update})); }, 0, "check_finite",
       "the loss has not been reduced"},
      {"NormOfTheShardOnly", fsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gradient_norm}).group = -1; }, 0, "gradient_norm",
       "it runs over no group, but must run over fsdp {0, 1}"},
      {"NormOverTheReplicas", hsdp, plain, 3,
       [](StepProgram& p) { at(p, {K::gradient_norm}).group = kReplica; }, 3, "gradient_norm",
       "it runs over dp_replicate {1, 3}, but must run over fsdp {2, 3}"},
  };
}

std::vector<Fault> replica_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  return {
      {"ReplicasAreNotSummed", hsdp, plain, kEveryRank,
       [](StepProgram& p) { erase_both(p, K::all_reduce_start, K::all_reduce_wait, 2); }, 0, "gradient_norm",
       "the gradient of unit layers.1 has not been all-reduced"},
      {"AllReduceBeforeTheShardIsReady", hsdp, plain, 3,
       [](StepProgram& p) { move(p, find(p, {K::all_reduce_start, 1}), find(p, {K::reduce_wait, 1})); }, 3,
       "all_reduce_start layers.0", "the gradient of unit layers.0 is still being reduced"},
      {"AllReduceIsNotWaitedFor", hsdp, plain, 1,
       [](StepProgram& p) { erase(p, find(p, {K::all_reduce_wait, 0})); }, 1, "gradient_norm",
       "the gradient of unit embedding is still being all-reduced"},
      {"AllReduceOverTheShards", hsdp, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::all_reduce_start, 1}).group = kShard; }, 0, "all_reduce_start layers.0",
       "it runs over fsdp {0, 1}, but must run over dp_replicate {0, 2}"},
      {"AllReduceTwice", hsdp, plain, 2, [](StepProgram& p) { repeat(p, find(p, {K::all_reduce_start, 1})); },
       2, "all_reduce_start layers.0", "the gradient of unit layers.0 is already being all-reduced"},
      {"OneReplicaSumsInAnotherOrder", hsdp, plain, 2,
       [](StepProgram& p) {
         move(p, find(p, {K::all_reduce_start, 3}), find(p, {K::all_reduce_start, 2}) + 1);
       },
       2, "all_reduce_start layers.1", "differs from rank 0, operation"},
      {"WholeModelsAreSummedTooEarly",
       [](const RankOptions& options) { return programs_of(small_model(), 1, 2, options); }, plain, 1,
       [](StepProgram& p) { move(p, find(p, {K::all_reduce_start, 2}), find(p, {K::backward, -1, 2, 1})); },
       1, "backward layers.1 m1", "the gradient of unit layers.1 is already being all-reduced"},
      {"GroupsThatAreNotMutual", hsdp, plain, 3, [](StepProgram& p) { p.groups[kShard].ranks = {1, 3}; }, 2,
       "gather_start embedding over fsdp", "rank 3 is a member of fsdp {2, 3} here"},
      {"GroupWithoutItsOwnRank", hsdp, plain, 3, [](StepProgram& p) { p.groups[kShard].ranks = {1, 2}; }, 3,
       "end of the program", "not a member of its group fsdp {1, 2}"},
  };
}

std::vector<Fault> accumulation_faults() {
  using K = OpKind;
  return {
      {"TheSecondReductionOverwritesTheFirst", fsdp, each_micro_batch(), kEveryRank,
       [](StepProgram& p) { p.operations[second(p, {K::reduce_start, 1})].accumulate = false; }, 0,
       "reduce_start layers.0", "overwrites the reduced gradient of block layers.0 on micro-batch 0"},
      {"TheFirstReductionAddsToTheStepBefore", fsdp, each_micro_batch(), kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).accumulate = true; }, 0, "reduce_start layers.0",
       "adds to the gradient of the step before"},
      {"TheLastMicroBatchIsNotReduced", fsdp, each_micro_batch(), kEveryRank,
       [](StepProgram& p) {
         erase(p, second(p, {K::reduce_wait, 1}));
         erase(p, second(p, {K::reduce_start, 1}));
       },
       0, "gradient_norm", "the gradient of unit layers.0 was already started"},
      {"TheFirstMicroBatchIsNotReduced", fsdp, each_micro_batch(), 1,
       [](StepProgram& p) { erase_both(p, K::reduce_start, K::reduce_wait, 1); }, 1,
       "start_gradient layers.0", "the gradient of unit layers.0 was already started"},
      {"WrittenWhileItIsReduced", fsdp, each_micro_batch(), 1,
       [](StepProgram& p) { move(p, find(p, {K::reduce_wait, 0}), second(p, {K::start_gradient, 0}) + 1); },
       1, "start_gradient embedding", "the gradient of unit embedding is already being reduced"},
      {"ReplicasAreSummedBeforeTheLastMicroBatch", hsdp, each_micro_batch(), kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::all_reduce_start, 3}), find(p, {K::reduce_wait, 3}) + 1); },
       0, "start_gradient head", "the gradient of unit head is already being all-reduced"},
      {"AStashIsNeverAdded", fsdp, ordered(), kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::add_gradient, 1})); }, 0, "gradient_norm",
       "unit layers.0: the gradient of block layers.0 on micro-batch 0 is missing"},
      {"AStashFromAnotherLevel", fsdp, ordered(), 1,
       [](StepProgram& p) { at(p, {K::add_gradient, 1}).level = 1; }, 1, "add_gradient layers.0 level 1",
       "level 1 of the gradient of unit layers.0 has not been filled"},
      {"ReducedBeforeTheTreeIsSummed", fsdp, ordered(), kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::reduce_start, 1}), find(p, {K::add_gradient, 1})); }, 0,
       "add_gradient layers.0 level 0", "the gradient of unit layers.0 is still being reduced"},
      {"AStashDoesNotFreeTheWholeGradient", fsdp, ordered(), 1,
       [](StepProgram& p) { at(p, {K::stash_gradient, 1}).frees.clear(); }, 1, "start_gradient layers.0",
       "buffer whole_gradient layers.0 is never freed"},
  };
}

std::vector<Fault> cycles() {
  using K = OpKind;
  return {
      {"LossAndNormInAnotherOrder", hsdp, two_micro_batches(), 3,
       [](StepProgram& p) { move(p, find(p, {K::reduce_loss}), find(p, {K::check_finite})); }, 0,
       "reduce_loss over loss", "waits for rank 3 to join"},
      {"TheLossBeforeTheLastReductionOnOneRank", fsdp, two_micro_batches(), 0,
       [](StepProgram& p) {
         const auto loss = find(p, {K::reduce_start, 0});
         move(p, find(p, {K::reduce_loss}), loss);
         p.operations[loss + 1].needs = {static_cast<int>(loss)};
       },
       0, "reduce_loss over loss", "a cycle of waits"},
      {"AllReducesWaitForEachOther", hsdp, two_micro_batches(), 2,
       [](StepProgram& p) {
         // Its last reduction waits for a sum over the replicas, theirs for that reduction.
         move(p, find(p, {K::all_reduce_wait, 1}), find(p, {K::reduce_start, 0}));
         at(p, {K::all_reduce_wait, 1}).needs = {static_cast<int>(find(p, {K::all_reduce_start, 1}))};
         const auto reduce = find(p, {K::reduce_start, 0});
         p.operations[reduce].needs = {static_cast<int>(reduce) - 1};
         move(p, find(p, {K::reduce_loss}), find(p, {K::all_reduce_wait, 1}));
       },
       0, "all_reduce_start embedding", "a cycle of waits"},
  };
}

std::vector<Fault> all_faults() {
  std::vector<Fault> all;
  for (const auto& faults : {reduction_faults(), gather_faults(), loss_faults(), replica_faults(),
                             accumulation_faults(), cycles()}) {
    all.insert(all.end(), faults.begin(), faults.end());
  }
  return all;
}

class PlantedFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedFault, IsFound) {
  expect_found(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Checker, PlantedFault, ::testing::ValuesIn(all_faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
