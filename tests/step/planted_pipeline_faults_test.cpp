// SPDX-License-Identifier: Apache-2.0
// Faults planted in programs of pipelines: the checker finds each, also by classes of ranks.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

using K = OpKind;

/// Pipelines of two ranks over two shards, in a schedule that splits backwards: ranks 0 and 1 have the
/// embedding and layers.1, ranks 2 and 3 layers.0 and the head.
Programs split_backwards(const RankOptions& options) {
  RankOptions sharded = options;
  sharded.plan.dims.dp_shard = 2;
  return pipeline_programs(small_model(), sharded,
                           make_schedule(ScheduleKind::interleaved_zero_bubble, 2, 2, options.micro_batches));
}

/// The same ranks in 1F1B with a tied model: two blocks on each stage.
Programs tied_stages(const RankOptions& options) {
  RankOptions sharded = options;
  sharded.plan.dims.dp_shard = 2;
  sharded.plan.tied = {"embedding", 0, 1};
  return pipeline_programs(small_model(2, true), sharded,
                           make_schedule(ScheduleKind::one_f_one_b, 2, 1, options.micro_batches));
}

/// Stages of two tensor-parallel ranks.
Programs divided_stages(const RankOptions& options) {
  ModelSpec model = small_model();
  for (BlockSpec& block : model.blocks) add_exchanges(block, BlockAxis::tensor, 8, 8);
  RankOptions of_job = options;
  of_job.plan.dims = {.dp_shard = 1, .tp = 2};
  return pipeline_programs(model, of_job,
                           make_schedule(ScheduleKind::one_f_one_b, 2, 1, options.micro_batches));
}

/// Two ranks per stage.
constexpr int kFirst = 0;  // rank of the first stage
constexpr int kLast = 2;   // of the last one
constexpr int kInStage = 2;

// Blocks, and units, of split_backwards().
constexpr int kEmbedding = 0;
constexpr int kLayer1 = 1;
constexpr int kLayer0 = 0;
constexpr int kHead = 1;

RankOptions options_of(ProgramKind kind = ProgramKind::train) {
  RankOptions options = small_options(kind == ProgramKind::train ? 2 : 1);
  options.kind = kind;
  options.set_gathers({DType::bf16, ReshardMode::never, 1});
  return options;
}

/// Erases an operation that frees buffers; `keeper` frees them instead.
void erase_sender(StepProgram& program, const Match& sender, const Match& keeper) {
  const std::size_t i = find(program, sender);
  std::vector<int>& frees = at(program, keeper).frees;
  frees.insert(frees.end(), program.operations[i].frees.begin(), program.operations[i].frees.end());
  erase(program, i);
}

/// Operation `early` frees the buffer of this kind that `late` frees.
void free_early(StepProgram& program, const Match& late, BufferKind kind, const Match& early) {
  std::vector<int>& frees = at(program, late).frees;
  const int buffer = find_buffer(program, frees, kind);
  ASSERT_GE(buffer, 0);
  std::erase(frees, buffer);
  at(program, early).frees.push_back(buffer);
}

void never_free(StepProgram& program, const Match& match, BufferKind kind) {
  std::vector<int>& frees = at(program, match).frees;
  const int buffer = find_buffer(program, frees, kind);
  ASSERT_GE(buffer, 0);
  std::erase(frees, buffer);
}

std::vector<Fault> message_faults() {
  const RankOptions plain = options_of();
  return {
      {"SendsAreSwapped", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         move(p, find(p, {K::send, -1, kEmbedding, 0}), find(p, {K::send, -1, kEmbedding, 1}) + 1);
       },
       2, "receive layers.0 m0", "expects micro-batch = 0, but the next message, from rank 0, operation"},
      {"ABundleIsNotSent", split_backwards, plain, kFirst,
       [](StepProgram& p) { erase_sender(p, {K::send, -1, kEmbedding, 0}, {K::forward, -1, kEmbedding, 1}); },
       2, "receive layers.0 m0", "expects micro-batch = 0"},
      {"TheLastGradientIsNotSent", split_backwards, plain, kLast,
       [](StepProgram& p) {
         erase_sender(p, {K::send_gradient, -1, kLayer0, 1}, {K::backward_input, -1, kLayer0, 1});
       },
       0, "receive_gradient embedding m1", "rank 2 never sends it"},
      {"ABundleIsNotReceived", split_backwards, plain, kLast,
       [](StepProgram& p) { erase(p, find(p, {K::receive, -1, kLayer0, 1})); }, 2, "forward layers.0 m1",
       "value input of layers.0 on micro-batch 1 has not been computed or received"},
      {"AGradientIsNotReceived", split_backwards, plain, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::receive_gradient, -1, kLayer1, 0})); }, 0,
       "backward_input layers.1 m0",
       "the gradient of value layers.1 on micro-batch 0 has not been computed or received"},
      {"ABundleIsReceivedTwice", split_backwards, plain, kLast,
       [](StepProgram& p) { repeat(p, find(p, {K::receive, -1, kLayer0, 0})); }, 2, "receive layers.0 m0",
       "value input of layers.0 on micro-batch 0 was already computed or received"},
      {"AGradientIsReceivedTwice", split_backwards, plain, kFirst,
       [](StepProgram& p) { repeat(p, find(p, {K::receive_gradient, -1, kLayer1, 0})); }, 0,
       "receive_gradient layers.1 m0",
       "the gradient of value layers.1 on micro-batch 0 was already computed or received"},
      {"ABundleIsSentTwice", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         const std::size_t send = find(p, {K::send, -1, kLayer1, 1});
         repeat(p, send);
         std::swap(p.operations[send].frees, p.operations[send + 1].frees);
       },
       2, "receive_gradient layers.0 m0", "expects tag = 5, but the next message"},
      {"WrongTag", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kLayer1, 0}).tag = value_tag(1, false); }, 0,
       "send layers.1 m0", "it has tag 2, but what it carries between stages has tag 6"},
      {"BothEndsHaveTheTagOfAnotherStage", split_backwards, plain, kEveryRank,
       [](StepProgram& p) {
         for (Operation& operation : p.operations)
           if (operation.tag == value_tag(1, false)) operation.tag = value_tag(2, false);
       },
       0, "send embedding m0", "it has tag 4, but what it carries between stages has tag 2"},
      {"WrongBytes", split_backwards, plain, kLast,
       [](StepProgram& p) { at(p, {K::receive, -1, kLayer0, 1}).bytes /= 2; }, 2, "receive layers.0 m1",
       "expects bytes = 256"},
      {"AMessageOfAnotherMicroBatch", split_backwards, plain, kLast,
       [](StepProgram& p) {
         Operation& first = at(p, {K::receive, -1, kLayer0, 0});
         Operation& other = at(p, {K::receive, -1, kLayer0, 1});
         std::swap(first.micro_batch, other.micro_batch);
         std::swap(first.allocates, other.allocates);
         for (Operation& operation : p.operations)
           if (operation.kind == K::forward) operation.needs.push_back(2);
       },
       2, "receive layers.0 m1", "expects micro-batch = 1, but the next message"},
      {"AMicroBatchThatIsNotComputedIsSent", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kEmbedding, 0}).micro_batch = 1; }, 0, "send embedding m1",
       "value embedding on micro-batch 1 has not been computed or received"},
      {"WrongPeer", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kEmbedding, 0}).peer = 1 - p.rank; }, 0, "send embedding m0",
       "rank 1 is not a member of pp {0, 2}"},
      {"APeerOfAnotherPipeline", split_backwards, plain, kLast,
       [](StepProgram& p) { at(p, {K::receive, -1, kLayer0, 0}).peer = 3 - p.rank; }, 2,
       "receive layers.0 m0", "rank 1 is not a member of pp {0, 2}"},
      {"ItselfAsPeer", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kEmbedding, 0}).peer = p.rank; }, 0, "send embedding m0",
       "cannot send to itself"},
      {"WrongLane", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kEmbedding, 0}).lane = Lane::send_previous; }, 0,
       "send embedding m0", "it runs on lane send_previous, not send_next"},
      {"AMessageOnTheComputeLane", split_backwards, plain, kLast,
       [](StepProgram& p) { at(p, {K::receive, -1, kLayer0, 0}).lane = Lane::compute; }, 2,
       "receive layers.0 m0", "it runs on lane compute, not receive_next"},
      {"AMessageOverTheShards", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kEmbedding, 0}).group = group_of(p, kShardGroup); }, 0,
       "send embedding m0", "rank 2 is not a member of fsdp {0, 1}"},
      {"ABundleIsUsedWhileItIsReceived", split_backwards, plain, kLast,
       [](StepProgram& p) { at(p, {K::forward, -1, kLayer0, 0}).needs.clear(); }, 2, "forward layers.0 m0",
       "runs on lane receive_next, and no dependency orders them"},
      {"AGradientIsUsedWhileItIsReceived", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::backward_input, -1, kLayer1, 0}).needs.clear(); }, 0,
       "backward_input layers.1 m0", "runs on lane receive_next, and no dependency orders them"},
      {"ABundleIsSentWhileItIsComputed", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kEmbedding, 0}).needs.clear(); }, 0, "send embedding m0",
       "runs on lane compute, and no dependency orders them"},
      {"AGradientIsSentWhileItIsComputed", split_backwards, plain, kLast,
       [](StepProgram& p) { at(p, {K::send_gradient, -1, kLayer0, 1}).needs.clear(); }, 2,
       "send_gradient layers.0 m1", "runs on lane compute, and no dependency orders them"},
      {"AValueWithinAStageIsSent", tied_stages, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, 1, 0}).block = 0; }, 0, "send embedding m0",
       "nothing leaves the rank after block embedding"},
      {"TheHeadHasNothingToSend", split_backwards, plain, kLast,
       [](StepProgram& p) { at(p, {K::send, -1, kLayer0, 0}).block = kHead; }, 2, "send head m0",
       "nothing leaves the rank after block head"},
      {"TheOutputOfAnotherStageIsSent", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::send, -1, kEmbedding, 0}).block = kLayer1; }, 0, "send layers.1 m0",
       "it has tag 2, but what it carries between stages has tag 6"},
  };
}

std::vector<Fault> computation_faults() {
  const RankOptions plain = options_of();
  return {
      {"TheWeightGradientIsMissing", split_backwards, plain, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::backward_weight, -1, kLayer1, 1})); }, 0, "gradient_norm",
       "unit layers.1: the gradient of block layers.1 on micro-batch 1 is missing"},
      {"TheWeightGradientBeforeThatOfTheInput", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         move(p, find(p, {K::backward_weight, -1, kLayer1, 0}), find(p, {K::backward_input, -1, kLayer1, 0}));
       },
       0, "backward_weight layers.1 m0",
       "the weight gradient of block layers.1 on micro-batch 0 has not been queued"},
      {"TheWeightGradientTwice", split_backwards, plain, kLast,
       [](StepProgram& p) { repeat(p, find(p, {K::backward_weight, -1, kLayer0, 0})); }, 2,
       "backward_weight layers.0 m0",
       "the weight gradient of block layers.0 on micro-batch 0 was already computed"},
      {"TheInputGradientTwice", split_backwards, plain, kLast,
       [](StepProgram& p) { repeat(p, find(p, {K::backward_input, -1, kLayer0, 0})); }, 2,
       "backward_input layers.0 m0", "the graph of block layers.0 on micro-batch 0 was already used"},
      {"AMicroBatchHasNoBackward", split_backwards, plain, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::backward, -1, kEmbedding, 1})); }, 0, "gradient_norm",
       "unit embedding: the gradient of block embedding on micro-batch 1 is missing"},
      {"AWholeBackwardInPlaceOfTheInputGradient", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::backward_input, -1, kLayer1, 0}).kind = K::backward; }, 0,
       "backward layers.1 m0", "the gradient of unit layers.1 has not been started"},
      {"AStageHasMoreMicroBatches", split_backwards, plain, kLast,
       [](StepProgram& p) {
         RankOptions options = options_of();
         options.micro_batches = 3;
         p = split_backwards(options)[static_cast<std::size_t>(p.rank)];
       },
       2, "receive layers.0 m2", "expects tag = 2"},
      {"AStageTakesTheFirstForFrozen", tied_stages, plain, kLast,
       [](StepProgram& p) {
         RankOptions options = options_of();
         options.pipeline.first_trained_stage = 1;
         p = tied_stages(options)[static_cast<std::size_t>(p.rank)];
       },
       0, "receive_gradient layers.0 m0", "rank 2 never sends it"},
      {"TheUnitIsReleasedBetweenItsUses", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         move(p, find(p, {K::release, kLayer1}), find(p, {K::backward_input, -1, kLayer1, 1}));
       },
       0, "backward_input layers.1 m1", "unit layers.1 was released"},
      {"TheUnitIsNotGatheredYet", split_backwards, plain, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::gather_wait, kLayer1})); }, 0, "forward layers.1 m0",
       "unit layers.1 is still being gathered"},
  };
}

std::vector<Fault> buffer_faults() {
  using B = BufferKind;
  const RankOptions plain = options_of();
  return {
      {"ABundleIsFreedBeforeItIsSent", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         free_early(p, {K::send, -1, kEmbedding, 0}, B::bundle, {K::forward, -1, kEmbedding, 0});
       },
       0, "send embedding m0", "buffer bundle embedding m0 was already freed"},
      {"ABundleIsFreedWhileItIsSent", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         const std::size_t send = find(p, {K::send, -1, kEmbedding, 0});
         const auto next =
             std::find_if(p.operations.begin() + static_cast<std::ptrdiff_t>(send), p.operations.end(),
                          [](const Operation& later) { return later.lane == Lane::compute; });
         std::swap(p.operations[send].frees, next->frees);
       },
       0, "", "has finished: that runs on lane send_next, and no dependency orders them"},
      {"ABundleIsNeverFreed", split_backwards, plain, kFirst,
       [](StepProgram& p) { never_free(p, {K::send, -1, kEmbedding, 0}, B::bundle); }, 0,
       "forward embedding m0", "buffer bundle embedding m0 is never freed"},
      {"AReceivedBundleIsFreedBeforeTheBackward", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         free_early(p, {K::backward_input, -1, kLayer1, 0}, B::bundle, {K::forward, -1, kLayer1, 0});
       },
       0, "backward_input layers.1 m0", "buffer bundle input of layers.1 m0 was already freed"},
      {"WhatWeightsNeedIsFreedWithTheGraph", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         free_early(p, {K::backward_weight, -1, kLayer1, 0}, B::weight_inputs,
                    {K::backward_input, -1, kLayer1, 0});
       },
       0, "backward_weight layers.1 m0", "buffer weight_inputs layers.1 m0 was already freed"},
      {"AGraphIsFreedByAnotherMicroBatch", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         free_early(p, {K::backward_input, -1, kLayer1, 1}, B::graph, {K::backward_input, -1, kLayer1, 0});
       },
       0, "backward_input layers.1 m1", "buffer graph layers.1 m1 was already freed"},
      {"AGraphIsNeverFreed", split_backwards, plain, kFirst,
       [](StepProgram& p) { never_free(p, {K::backward, -1, kEmbedding, 0}, B::graph); }, 0,
       "forward embedding m0", "buffer graph embedding m0 is never freed"},
      {"AWeightQueueIsFreedByTheInputGradient", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         free_early(p, {K::backward_weight, -1, kLayer1, 0}, B::weight_queue,
                    {K::backward_input, -1, kLayer1, 0});
       },
       0, "backward_weight layers.1 m0", "buffer weight_queue layers.1 m0 was already freed"},
      {"AWeightQueueIsNeverFreed", split_backwards, plain, kLast,
       [](StepProgram& p) { never_free(p, {K::backward_weight, -1, kLayer0, 1}, B::weight_queue); }, 2,
       "backward_input layers.0 m1", "buffer weight_queue layers.0 m1 is never freed"},
      {"AGradientIsFreedBeforeItIsSent", split_backwards, plain, kLast,
       [](StepProgram& p) {
         free_early(p, {K::send_gradient, -1, kHead, 0}, B::bundle_gradient,
                    {K::loss_forward_backward, -1, kHead, 0});
       },
       2, "send_gradient head m0", "buffer bundle_gradient input of head m0 was already freed"},
      {"AReceivedGradientIsNeverFreed", split_backwards, plain, kFirst,
       [](StepProgram& p) { never_free(p, {K::backward, -1, kEmbedding, 1}, B::bundle_gradient); }, 0,
       "receive_gradient embedding m1", "buffer bundle_gradient embedding m1 is never freed"},
      {"ABatchIsFreedBeforeTheStageOfTheLoss", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         free_early(p, {K::backward, -1, kEmbedding, 0}, B::batch, {K::forward, -1, kEmbedding, 0});
       },
       0, "m0", "buffer batch m0 was already freed"},
      {"NoMemoryForAReceivedBundle", split_backwards, plain, kLast,
       [](StepProgram& p) { at(p, {K::receive, -1, kLayer0, 0}).allocates.clear(); }, 2,
       "forward layers.0 m0", "buffer bundle input of layers.0 m0 has not been allocated"},
  };
}

std::vector<Fault> sum_faults() {
  const RankOptions plain = options_of();
  RankOptions ordered = plain;
  ordered.ordered = true;
  RankOptions offloaded = plain;
  offloaded.plan.offload = true;
  return {
      {"ReducedBeforeTheLastWeightGradient", split_backwards, plain, kFirst,
       [](StepProgram& p) {
         move(p, find(p, {K::reduce_start, kLayer1}), find(p, {K::backward_weight, -1, kLayer1, 1}));
       },
       0, "backward_weight layers.1 m1", "the gradient of unit layers.1 is still being reduced"},
      {"TheReductionDoesNotWaitForTheWeightGradient", split_backwards, plain, kFirst,
       [](StepProgram& p) { at(p, {K::reduce_start, kLayer1}).needs.clear(); }, 0, "reduce_start layers.1",
       "no dependency orders them"},
      {"TheGradientIsNotStarted", split_backwards, plain, kLast,
       [](StepProgram& p) { erase(p, find(p, {K::start_gradient, kLayer0})); }, 2,
       "backward_weight layers.0 m0", "the gradient of unit layers.0 has not been started"},
      {"AStashIsNeverAdded", split_backwards, ordered, kLast,
       [](StepProgram& p) { erase(p, find(p, {K::add_gradient, kLayer0})); }, 2, "gradient_norm",
       "unit layers.0: the gradient of block layers.0 on micro-batch 0 is missing"},
      {"CopiesAreNotSummed", tied_stages, plain, kLast,
       [](StepProgram& p) { erase(p, find(p, {K::tie_reduce})); }, 2, "gradient_norm",
       "the gradient of unit embedding has not been summed over its copies"},
      {"CopiesAreSummedTwice", tied_stages, plain, kFirst,
       [](StepProgram& p) { repeat(p, find(p, {K::tie_reduce})); }, 0, "tie_reduce embedding",
       "the gradient of unit embedding was already summed over its copies"},
      {"CopiesAreSummedBeforeTheReduction", tied_stages, plain, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::tie_reduce}), find(p, {K::reduce_wait, 0})); }, 0,
       "tie_reduce embedding", "the gradient of unit embedding is still being reduced"},
      {"CopiesAreSummedBeforeTheLastMicroBatch", tied_stages, plain, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::tie_reduce}), find(p, {K::backward, -1, 0, 1})); }, 0,
       "tie_reduce embedding", "the gradient of unit embedding has not been reduced"},
      {"CopiesAreSummedOverTheShards", tied_stages, plain, kLast,
       [](StepProgram& p) { at(p, {K::tie_reduce}).group = group_of(p, kShardGroup); }, 2,
       "tie_reduce embedding", "it runs over fsdp {2, 3}, but must run over tie {0, 2}"},
      {"CopiesAreSummedBeforeTheGradientIsOnTheHost", tied_stages, offloaded, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::tie_reduce}), find(p, {K::offload_wait, 0})); }, 0,
       "tie_reduce embedding", "no dependency orders them"},
      {"ALeafOfTheCopiesIsNotSummed", tied_stages, ordered, kLast,
       [](StepProgram& p) { erase(p, find(p, {K::tie_leaf, 0, -1, 1})); }, 2, "gradient_norm",
       "the gradient of unit embedding of micro-batch 1 has not been summed over its copies"},
      {"ALeafOfTheCopiesIsSummedTwice", tied_stages, ordered, kFirst,
       [](StepProgram& p) { repeat(p, find(p, {K::tie_leaf, 0, -1, 0})); }, 0, "tie_leaf embedding m0",
       "already summed over its copies"},
      {"ALeafOfTheCopiesIsSummedWithAnother", tied_stages, ordered, kFirst,
       [](StepProgram& p) {
         const std::size_t last = find(p, {K::tie_leaf, 0, -1, 1});
         move(p, last, find(p, {K::add_gradient}, last) + 1);
       },
       0, "tie_leaf embedding m1", "the gradient is not that of micro-batch 1 alone"},
      {"CopiesAreSummedAsALeafAndAsAWhole", tied_stages, ordered, kLast,
       [](StepProgram& p) {
         const std::size_t leaf = find(p, {K::tie_leaf});
         Operation whole = p.operations[leaf];
         whole.kind = K::tie_reduce;
         whole.micro_batch = -1;
         p.operations.insert(p.operations.begin() + static_cast<std::ptrdiff_t>(leaf) + 1, whole);
         for (Operation& operation : p.operations)
           for (int& needed : operation.needs) needed += needed > static_cast<int>(leaf) ? 1 : 0;
       },
       2, "tie_reduce embedding", "the gradient of unit embedding has not been reduced"},
      {"ALeafOfTheCopiesIsSummedOverTheShards", tied_stages, ordered, kLast,
       [](StepProgram& p) { at(p, {K::tie_leaf}).group = group_of(p, kShardGroup); }, 2,
       "tie_leaf embedding m0", "must run over tie {0, 2}"},
      {"LeavesOfTheCopiesAreSummedInAnotherOrder", tied_stages, ordered, kLast,
       [](StepProgram& p) {
         Operation& first = at(p, {K::stash_gradient, 0});
         Operation& other = p.operations[second(p, {K::stash_gradient, 0})];
         std::swap(first.level, other.level);
         std::swap(first.allocates, other.allocates);
         std::swap(at(p, {K::tie_leaf, 0, -1, 0}).micro_batch, at(p, {K::tie_leaf, 0, -1, 1}).micro_batch);
       },
       2, "tie_leaf embedding m1", "collective 0 over tie {0, 2} differs from rank 0"},
      {"CopiesAreSummedAfterTheNorm", tied_stages, plain, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::tie_reduce}), find(p, {K::gradient_norm}) + 1); }, 0,
       "gradient_norm", "has not been summed over its copies"},
      {"OneStageDoesNotKnowOfTheTie", tied_stages, plain, kLast,
       [](StepProgram& p) {
         erase(p, find(p, {K::tie_reduce}));
         for (ProgramUnit& unit : p.units) unit.tie_group = -1;
       },
       0, "tie_reduce embedding", "collective 0 over tie {0, 2} has no partner on rank 2"},
  };
}

std::vector<Fault> end_faults() {
  const RankOptions plain = options_of();
  const RankOptions evaluation = options_of(ProgramKind::evaluate);
  const RankOptions generation = options_of(ProgramKind::generate);
  const auto over_shards = [](K kind) {
    return [kind](StepProgram& p) { at(p, {kind}).group = group_of(p, kShardGroup); };
  };
  return {
      {"TheLossIsNotShared", split_backwards, plain, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::share_loss})); }, 0, "reduce_loss",
       "the result of the last stage has not been shared"},
      {"TheLossIsSharedBeforeTheLastMicroBatch", split_backwards, plain, kLast,
       [](StepProgram& p) {
         move(p, find(p, {K::share_loss}), find(p, {K::loss_forward_backward, -1, kHead, 1}));
       },
       2, "loss_forward_backward head m1", "the result of the last stage was already shared"},
      {"TheLossIsSharedTwice", split_backwards, plain, kLast,
       [](StepProgram& p) { repeat(p, find(p, {K::share_loss})); }, 2, "share_loss",
       "the result of the last stage was already shared"},
      {"TheLossIsSharedOverTheShards", split_backwards, plain, kFirst, over_shards(K::share_loss), 0,
       "share_loss", "it runs over fsdp {0, 1}, but must run over pp {0, 2}"},
      {"TheLossIsSharedAfterTheCheck", divided_stages, plain, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::share_loss}), find(p, {K::check_finite}) + 1); }, 0,
       "check_finite", "the result of the last stage has not been shared"},
      {"TheNormIsOfOneStage", split_backwards, plain, kLast,
       [](StepProgram& p) { erase(p, find(p, {K::join_stage_norms})); }, 2, "check_finite",
       "the norm of the stages has not been joined"},
      {"TheNormsAreJoinedBeforeTheyAreComputed", split_backwards, plain, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::join_stage_norms}), find(p, {K::gradient_norm})); }, 0,
       "join_stage_norms", "the gradient norm has not been computed"},
      {"TheNormsAreJoinedTwice", split_backwards, plain, kFirst,
       [](StepProgram& p) { repeat(p, find(p, {K::join_stage_norms})); }, 0, "join_stage_norms",
       "the norm of the stages was already joined"},
      {"TheNormsAreJoinedOverTheShards", split_backwards, plain, kLast, over_shards(K::join_stage_norms), 2,
       "join_stage_norms", "it runs over fsdp {2, 3}, but must run over pp {0, 2}"},
      {"TheNormsOfStagesAreJoinedBeforeThoseOfTheirParts", divided_stages, plain, kLast,
       [](StepProgram& p) { move(p, find(p, {K::join_stage_norms}), find(p, {K::join_norm})); }, 2,
       "join_stage_norms", "the norm of the parts of tensors has not been joined"},
      {"OneStageJoinsTheNormsBeforeTheLoss", split_backwards, plain, kLast,
       [](StepProgram& p) {
         move(p, find(p, {K::share_loss}), find(p, {K::check_finite}));
         move(p, find(p, {K::reduce_loss}), find(p, {K::check_finite}));
       },
       2, "join_stage_norms", "collective 0 over pp {0, 2} differs from rank 0"},
      {"AnUpdateBeforeTheNorm", split_backwards, plain, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::update, kLayer1}), find(p, {K::gradient_norm})); }, 0,
       "update layers.1", "the gradient norm has not been computed"},
      {"AnUpdateBeforeTheNormsAreJoined", split_backwards, plain, kLast,
       [](StepProgram& p) { move(p, find(p, {K::update, kHead}), find(p, {K::join_stage_norms})); }, 2,
       "update head", "the step has not been checked to be finite"},
      {"AStageWithoutLossCountsNoLabels", split_backwards, plain, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::count_labels})); }, 0, "end of the program",
       "the number of labels is never summed"},
      {"LabelsAreCountedOverOneStage", split_backwards, plain, kLast, over_shards(K::count_labels), 2,
       "count_labels", "it runs over fsdp {2, 3}, but must run over world {0, 1, 2, 3}"},
      {"TheLossOfAnEvaluationIsNotShared", tied_stages, evaluation, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::share_loss})); }, 0, "reduce_loss",
       "the result of the last stage has not been shared"},
      {"AnEvaluationSendsAGradient", tied_stages, evaluation, kLast,
       [](StepProgram& p) { at(p, {K::receive}).kind = K::receive_gradient; }, 2, "receive_gradient",
       "it does not belong in a program of kind evaluate"},
      {"TheLogitsAreNotShared", tied_stages, generation, kFirst,
       [](StepProgram& p) { erase(p, find(p, {K::share_logits})); }, 0, "end of the program",
       "the result of the last stage is never shared"},
      {"TheLossOfAGenerationIsShared", tied_stages, generation, kLast,
       [](StepProgram& p) { at(p, {K::share_logits}).kind = K::share_loss; }, 2, "share_loss",
       "it does not belong in a program of kind generate"},
  };
}

/// The operation runs before `before`, and that needs it.
void wait_for(StepProgram& program, const Match& match, const Match& before) {
  move(program, find(program, match), find(program, before));
  at(program, before).needs.push_back(static_cast<int>(find(program, match)));
}

std::vector<Fault> pipeline_cycles() {
  const RankOptions plain = options_of();
  return {
      {"ABundleWaitsForItsGradient", split_backwards, plain, kFirst,
       [](StepProgram& p) { wait_for(p, {K::receive_gradient, -1, kLayer1, 0}, {K::send, -1, kLayer1, 0}); },
       0, "receive_gradient layers.1 m0", "a cycle of waits"},
      {"TheLossIsSharedBeforeTheLastGradientArrives", split_backwards, plain, kFirst,
       [](StepProgram& p) { move(p, find(p, {K::share_loss}), find(p, {K::forward, -1, kLayer1, 1})); }, 0,
       "share_loss over pp", "a cycle of waits"},
      {"TheFirstBundleWaitsForTheSecondToBeReceived", split_backwards, plain, kLast,
       [](StepProgram& p) { wait_for(p, {K::receive, -1, kHead, 0}, {K::send, -1, kLayer0, 0}); }, 0, "",
       "a cycle of waits"},
  };
}

std::vector<Fault> all_pipeline_faults() {
  std::vector<Fault> all;
  for (const auto& faults : {message_faults(), computation_faults(), buffer_faults(), sum_faults(),
                             end_faults(), pipeline_cycles()})
    all.insert(all.end(), faults.begin(), faults.end());
  return all;
}

class PlantedPipelineFault : public ::testing::TestWithParam<Fault> {};

SymmetryProof prove_stages(const Programs& programs) {
  const Programs classes = {programs[kFirst], programs[kLast]};
  return check_classes(
      classes, static_cast<int>(programs.size()), [](int rank) { return rank / kInStage; },
      [&](int rank) { return views_of(element(programs, rank).groups); });
}

/// All ranks of a stage have the fault.
TEST_P(PlantedPipelineFault, IsFound) {
  const Fault& fault = GetParam();
  Programs programs = fault.programs(fault.options);
  ASSERT_NO_THROW(check_programs(programs));
  ASSERT_NO_THROW(prove_stages(programs));
  for (StepProgram& program : programs)
    if (program.rank / kInStage == fault.damaged / kInStage) fault.damage(program);
  expect_refused(programs, fault.found_at, fault.operation, fault.reason);
  EXPECT_THROW(prove_stages(programs), ProgramError);
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedPipelineFault, ::testing::ValuesIn(all_pipeline_faults()),
                         [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace stepforge::testing
