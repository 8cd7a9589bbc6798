// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/cost.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

constexpr CostContext kOneToken{.tokens = 1, .document_length = 4, .compute = DType::i8};

/// Sizes in bytes: one token of a one-byte dtype.
CallSpec call(int64_t output, int64_t saves, int64_t gradient) {
  CallSpec cost;
  cost.flops = 10;
  cost.output = {output, 0};
  cost.saves = {saves, 0};
  cost.gradient = {gradient, 0};
  return cost;
}

TEST(Elements, BytesDependOnTheComputeDtypeExceptFp32) {
  const Elements elements{3, 2};
  EXPECT_EQ(elements.bytes(5, DType::bf16), 5 * (3 * 2 + 2 * 4));
  EXPECT_EQ((elements + Elements{1, 1}).bytes(1, DType::f32), 4 * 4 + 3 * 4);
}

TEST(BlockCost, SavedBytesAreTheSumOfSaves) {
  const std::vector<RegionSpec> regions = {{"a", {call(4, 1, 4), call(4, 2, 4)}, false},
                                           {"b", {call(4, 8, 4)}, false}};
  EXPECT_EQ(block_cost(regions, kOneToken).saved_bytes, 1 + 2 + 8);
}

TEST(BlockCost, ForwardKeepsEveryResultOfARegionUntilItReturns) {
  CallSpec with_workspace = call(4, 0, 4);
  with_workspace.forward_workspace.token = {100, 0};
  with_workspace.extra = {3, 0};
  const std::vector<RegionSpec> one = {{"a", {call(16, 0, 4), with_workspace, call(2, 0, 4)}, false}};
  EXPECT_EQ(block_cost(one, kOneToken).forward_peak_bytes, 16 + 4 + 3 + 100);
  EXPECT_EQ(block_cost(one, kOneToken).output_bytes, 2);
}

TEST(BlockCost, WithoutAGraphStatisticsLiveOnlyDuringTheirCall) {
  CallSpec first = call(16, 0, 4);
  first.extra = {5, 0};
  const std::vector<RegionSpec> one = {{"a", {first, call(4, 0, 4)}, false}};
  EXPECT_EQ(block_cost(one, kOneToken).forward_peak_bytes, 16 + 5 + 4);
  EXPECT_EQ(block_cost(one, kOneToken).inference_peak_bytes, 16 + 5);
}

TEST(BlockCost, ForwardKeepsSavesAndTheLastResultBetweenRegions) {
  const std::vector<RegionSpec> two = {{"a", {call(16, 5, 4), call(4, 0, 4)}, false},
                                       {"b", {call(64, 0, 4), call(4, 0, 4)}, false}};
  EXPECT_EQ(block_cost(two, kOneToken).forward_peak_bytes, 5 + 4 + 64 + 4);
  EXPECT_EQ(block_cost(two, kOneToken).inference_peak_bytes, 4 + 64 + 4);
}

TEST(BlockCost, ARecomputedRegionKeepsItsInputButNotTheInputOfTheBlock) {
  const std::vector<RegionSpec> two = {{"a", {call(4, 50, 4)}, false}, {"b", {call(6, 70, 6)}, false}};
  EXPECT_EQ(block_cost(two, kOneToken, {"a"}).saved_bytes, 0 + 70);
  EXPECT_EQ(block_cost(two, kOneToken, {"b"}).saved_bytes, 50 + 4);
  EXPECT_EQ(block_cost(two, kOneToken, {"a", "b"}).saved_bytes, 4);
}

TEST(BlockCost, BackwardFreesSavesAndGradientsButNotTheGradientOfTheCaller) {
  // Backward of the second call: +30, then -20 saved = 10; the incoming 8 belong to the caller. Of the first:
  // +8 = 18, workspace 21.
  CallSpec first = call(30, 5, 8);
  first.backward_workspace.token = {21, 0};
  std::vector<RegionSpec> regions = {{"a", {first, call(8, 20, 30)}, false}};
  EXPECT_EQ(block_cost(regions, kOneToken).backward_peak_bytes, 10 + 8 + 21);
  // After the region: 18 - 5 saved - 30 of the gradient between the calls = -17; the region below adds 75.
  regions.insert(regions.begin(), {"below", {call(8, 0, 75)}, false});
  EXPECT_EQ(block_cost(regions, kOneToken).backward_peak_bytes, -17 + 75);
}

TEST(BlockCost, AResidualRegionKeepsTheIncomingGradientToItsEnd) {
  CallSpec first = call(30, 5, 8);
  first.backward_workspace.token = {21, 0};
  std::vector<RegionSpec> regions = {{"a", {first, call(8, 20, 30)}, true},
                                     {"above", {call(8, 0, 100)}, false}};
  // 100 from above; +30 - 20 saved, and the 100 stay: 110; +8 and workspace 21.
  EXPECT_EQ(block_cost(regions, kOneToken).backward_peak_bytes, 110 + 8 + 21);
  // After the region: 118 - 5 saved - 30 - 100 = -17; the region below adds 200.
  regions.insert(regions.begin(), {"below", {call(8, 0, 200)}, false});
  EXPECT_EQ(block_cost(regions, kOneToken).backward_peak_bytes, -17 + 200);
}

TEST(BlockCost, ACallWithoutAGradientWorksInPlace) {
  const std::vector<RegionSpec> one = {{"a", {call(8, 0, 16), call(8, 0, 0)}, false},
                                       {"b", {call(8, 0, 0)}, false}};
  EXPECT_EQ(block_cost(one, kOneToken).backward_peak_bytes, 16);
}

TEST(BlockCost, BackwardOfARecomputedRegionRunsItsForwardFirst) {
  const std::vector<RegionSpec> one = {{"a", {call(100, 40, 8), call(8, 20, 30)}, false}};
  EXPECT_EQ(block_cost(one, kOneToken).backward_peak_bytes, 30);
  EXPECT_EQ(block_cost(one, kOneToken, {"a"}).backward_peak_bytes, 108);
}

TEST(BlockCost, ResultAndIncomingGradientOfARecomputedRegionLiveToItsEnd) {
  const std::vector<RegionSpec> two = {{"a", {call(4, 50, 200)}, false}, {"b", {call(6, 70, 300)}, false}};
  // b again: 4, its input, was kept and is one of its 70 saved; 6 its result, +300. Then all but the 300 is
  // freed: a, +200.
  EXPECT_EQ(block_cost(two, kOneToken, {"b"}).backward_peak_bytes, (66 + 6 + 300) - 70 - 6 + 200);
  // b: -70 saved, +300. a again: +50 saved, +4 its result, +200; b's 300 stay.
  EXPECT_EQ(block_cost(two, kOneToken, {"a"}).backward_peak_bytes, -70 + 300 + 50 + 4 + 200);
}

TEST(Workspace, ChunksAreNoLongerThanTheMicroBatch) {
  Workspace workspace;
  workspace.chunk_token = {10, 0};
  workspace.chunk = 8;
  EXPECT_EQ(workspace.bytes({.tokens = 3, .document_length = 3, .compute = DType::f32}), 3 * 10 * 4);
  EXPECT_EQ(workspace.bytes({.tokens = 30, .document_length = 3, .compute = DType::f32}), 8 * 10 * 4);
}

TEST(Workspace, NarrowElementsCountOnlyBelowFp32) {
  Workspace workspace;
  workspace.narrow = 7;
  EXPECT_EQ(workspace.bytes({.tokens = 3, .document_length = 3, .compute = DType::f32}), 0);
  EXPECT_EQ(workspace.bytes({.tokens = 3, .document_length = 3, .compute = DType::bf16}), 14);
}

TEST(Workspace, ScratchIsPerThreadAndThreadsAreLimitedByTasks) {
  Workspace workspace;
  workspace.thread_bytes = 100;
  workspace.thread_bytes_per_key = 2;
  workspace.tasks_per_document = 3;
  CostContext context{.tokens = 20, .document_length = 10, .compute = DType::f32, .threads = 4};
  EXPECT_EQ(workspace.bytes(context), 4 * (100 + 20));
  context.threads = 64;
  EXPECT_EQ(workspace.bytes(context), 6 * (100 + 20));
}

TEST(BlockCost, BackwardFlopsAreTwiceForwardPlusRecomputation) {
  CallSpec attention = call(1, 0, 1);
  attention.flops_per_key = 3;
  const std::vector<RegionSpec> two = {{"a", {attention}, false}, {"b", {call(1, 0, 1)}, false}};
  EXPECT_DOUBLE_EQ(block_cost(two, kOneToken).forward_flops, (10 + 3 * 4) + 10);
  EXPECT_DOUBLE_EQ(block_cost(two, kOneToken).backward_flops, 2 * 32);
  EXPECT_DOUBLE_EQ(block_cost(two, kOneToken, {"a"}).backward_flops, 2 * 32 + 22);
}

/// A linear call whose input another call saves if `saves` is 0.
CallSpec linear_call(int64_t saves, int64_t gradient) {
  CallSpec cost = call(1, saves, gradient);
  cost.rule = TypeRule::linear;
  cost.queued_saves = cost.saves;
  return cost;
}

TEST(BlockCost, WeightsTakeAForwardOfTheLinearCallsAndInputsTheRest) {
  CallSpec attention = call(1, 0, 1);
  attention.flops_per_key = 3;
  const std::vector<RegionSpec> two = {{"a", {attention, linear_call(0, 1)}, false},
                                       {"b", {linear_call(0, 1)}, false}};
  const BlockCost cost = block_cost(two, kOneToken, {"a"});
  EXPECT_DOUBLE_EQ(cost.backward_weight_flops, 10 + 10);
  EXPECT_DOUBLE_EQ(cost.backward_input_flops, 2 * 22 + 10 + 10 + 32);
  EXPECT_DOUBLE_EQ(cost.backward_flops, cost.backward_input_flops + cost.backward_weight_flops);
}

TEST(BlockCost, AQueueKeepsInputsOfLinearCallsAndTheGradientsOfTheirResults) {
  CallSpec before = call(9, 50, 30);  // saves the input of the last call, 9
  before.queued_saves = {9, 0};
  before.queued.token = {2, 0};
  CallSpec last = linear_call(0, 6);
  last.output = {16, 0};
  const std::vector<RegionSpec> one = {{"a", {linear_call(5, 8), before, last}, false}};
  const BlockCost cost = block_cost(one, kOneToken);
  // The gradients of 16 (of the caller) and 30, the inputs 9 and 5, and 2.
  EXPECT_EQ(cost.queued_bytes, 16 + 30 + 9 + 5 + 2);
  EXPECT_EQ(cost.queued_saved_bytes, 9 + 5);
  // +6; +30 + 2 at the call before, whose saved 50 become 9 and whose incoming 6 are freed; the 30 stay: +8.
  EXPECT_EQ(cost.backward_input_peak_bytes, 6 + 30 + 2);
  std::vector<RegionSpec> two = one;
  two.insert(two.begin(), {"below", {call(8, 0, 100)}, false});
  // 32 + 6 - 50 + 9 - 6 + 8, where the linear call frees nothing; then 100.
  EXPECT_EQ(block_cost(two, kOneToken).backward_input_peak_bytes, -9 + 8 + 100);
}

TEST(BlockCost, AQueueKeepsTheIncomingGradientOfAResidualRegionOnlyIfItIsThatOfALinearResult) {
  const RegionSpec below{"below", {call(8, 0, 100)}, false};
  const RegionSpec above{"above", {call(8, 0, 40)}, false};
  const auto peak = [&](std::vector<CallSpec> calls) {
    return block_cost({below, {"a", std::move(calls), true}, above}, kOneToken).backward_input_peak_bytes;
  };
  EXPECT_EQ(peak({linear_call(0, 8)}), 40 + 8 + 100);
  // Dropout masks the gradient: the queue keeps the masked one, 20.
  EXPECT_EQ(peak({linear_call(0, 8), call(8, 0, 20)}), 20 + 8 + 100);
  EXPECT_EQ(peak({call(8, 0, 8)}), 8 + 100);
}

TEST(BlockCost, AQueueKeepsWhatARecomputedRegionHasMadeAgain) {
  const RegionSpec below{"below", {call(8, 0, 100)}, false};
  const std::vector<RegionSpec> two = {below, {"a", {linear_call(5, 8)}, true}};
  const BlockCost cost = block_cost(two, kOneToken, {"a"});
  EXPECT_EQ(cost.queued_bytes, 5 + 1);
  EXPECT_EQ(cost.queued_saved_bytes, 0);
  // a again: its input of 8 was kept and is counted in its 5 saved, which stay; its result, 1, is freed.
  EXPECT_EQ(cost.backward_input_peak_bytes, (5 - 8) + 8 + 100);
}

TEST(BlockCost, TheRunOfAQueueFreesWhatItHasWritten) {
  CallSpec first = linear_call(5, 8);
  CallSpec second = linear_call(7, 6);
  first.weight_workspace.narrow = 40;
  second.weight_workspace.narrow = 22;
  std::vector<RegionSpec> one = {{"a", {first, second}, false}};
  // The second call's gradient is written first: 22; then its 7 and the caller's 1 are free.
  EXPECT_EQ(block_cost(one, kOneToken).backward_weight_peak_bytes, 40 - 7 - 1);
  EXPECT_EQ(block_cost(one, kOneToken).backward_input_peak_bytes, 6 + 8);
  EXPECT_EQ(block_cost(one, kOneToken).backward_peak_bytes, 6 - 7 + 40);
  one.front().calls.front().weight_workspace.narrow = 25;
  EXPECT_EQ(block_cost(one, kOneToken).backward_weight_peak_bytes, 22);
}

TEST(BlockCost, WorkspacesOfInputsAndWeightsLiveTogetherOnlyIfBesideEachOther) {
  CallSpec linear = linear_call(0, 8);
  linear.backward_workspace.token = {30, 0};
  linear.weight_workspace.token = {50, 0};
  EXPECT_EQ(block_cost({{"a", {linear}, false}}, kOneToken).backward_peak_bytes, 50);
  linear.weights_beside = true;
  EXPECT_EQ(block_cost({{"a", {linear}, false}}, kOneToken).backward_peak_bytes, 8 + 30 + 50);
  EXPECT_EQ(block_cost({{"a", {linear}, false}}, kOneToken).backward_input_peak_bytes, 8 + 30);
}

}  // namespace
}  // namespace stepforge::testing
