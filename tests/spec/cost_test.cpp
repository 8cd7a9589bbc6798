#include "spec/cost.h"

#include <gtest/gtest.h>

namespace stepforge::test {
namespace {

constexpr CostContext kOneToken{.tokens = 1, .document_length = 4, .compute = DType::i8};

/// Sizes in bytes: one token of a one-byte dtype.
OpCost call(int64_t output, int64_t saves, int64_t gradient) {
  OpCost cost;
  cost.flops = 10;
  cost.output = {output, 0};
  cost.saves = {saves, 0};
  cost.gradient = {gradient, 0};
  return cost;
}

TEST(Elements, CountComputeDtypeAndFp32Apart) {
  const Elements elements{3, 2};
  EXPECT_EQ(elements.bytes(5, DType::bf16), 5 * (3 * 2 + 2 * 4));
  EXPECT_EQ((elements + Elements{1, 1}).bytes(1, DType::f32), 4 * 4 + 3 * 4);
}

TEST(BlockCost, SavedBytesAreTheSumOfSaves) {
  const std::vector<SegmentCost> segments = {{"a", {call(4, 1, 4), call(4, 2, 4)}, false},
                                             {"b", {call(4, 8, 4)}, false}};
  EXPECT_EQ(block_cost(segments, kOneToken).saved_bytes, 1 + 2 + 8);
}

TEST(BlockCost, ForwardKeepsEveryResultOfASegmentUntilItReturns) {
  OpCost with_workspace = call(4, 0, 4);
  with_workspace.forward_workspace = {100, 0};
  with_workspace.extra = {3, 0};
  const std::vector<SegmentCost> one = {{"a", {call(16, 0, 4), with_workspace, call(2, 0, 4)}, false}};
  EXPECT_EQ(block_cost(one, kOneToken).forward_peak_bytes, 16 + 4 + 3 + 100);
  EXPECT_EQ(block_cost(one, kOneToken).output_bytes, 2);
}

TEST(BlockCost, ForwardKeepsSavesAndTheLastResultBetweenSegments) {
  const std::vector<SegmentCost> two = {{"a", {call(16, 5, 4), call(4, 0, 4)}, false},
                                        {"b", {call(64, 0, 4), call(4, 0, 4)}, false}};
  EXPECT_EQ(block_cost(two, kOneToken).forward_peak_bytes, 5 + 4 + 64 + 4);
  EXPECT_EQ(block_cost(two, kOneToken).inference_peak_bytes, 4 + 64 + 4);
}

TEST(BlockCost, ARecomputedSegmentKeepsItsInputButNotTheBlocks) {
  const std::vector<SegmentCost> two = {{"a", {call(4, 50, 4)}, false}, {"b", {call(6, 70, 6)}, false}};
  EXPECT_EQ(block_cost(two, kOneToken, {"a"}).saved_bytes, 0 + 70);
  EXPECT_EQ(block_cost(two, kOneToken, {"b"}).saved_bytes, 50 + 4);
  EXPECT_EQ(block_cost(two, kOneToken, {"a", "b"}).saved_bytes, 4);
}

TEST(BlockCost, BackwardFreesSavesAndTheIncomingGradient) {
  // Backward of the second call: +30, then -20 saved and -8 incoming = 2. Of the first: +8 = 10,
  // workspace 21.
  OpCost first = call(30, 5, 8);
  first.backward_workspace_bytes = 21;
  const std::vector<SegmentCost> one = {{"a", {first, call(8, 20, 30)}, false}};
  EXPECT_EQ(block_cost(one, kOneToken).backward_peak_bytes, 2 + 8 + 21);
}

TEST(BlockCost, AResidualKeepsTheIncomingGradientToTheSegmentsEnd) {
  OpCost first = call(30, 5, 8);
  first.backward_workspace_bytes = 21;
  std::vector<SegmentCost> segments = {{"a", {first, call(8, 20, 30)}, true}};
  EXPECT_EQ(block_cost(segments, kOneToken).backward_peak_bytes, 2 + 8 + 8 + 21);
  // After the segment only one gradient is left: 30 - 20, + 8 - 5 - 30, - 8 = -25; the segment below adds 50.
  segments.insert(segments.begin(), {"below", {call(8, 0, 75)}, false});
  EXPECT_EQ(block_cost(segments, kOneToken).backward_peak_bytes, -25 + 75);
}

TEST(BlockCost, ACallWithoutGradientPassesTheIncomingOneOn) {
  const std::vector<SegmentCost> one = {{"a", {call(8, 0, 16), call(8, 0, 0)}, false},
                                        {"b", {call(8, 0, 0)}, false}};
  // Only one gradient of 16 bytes is allocated, then the incoming 8 are freed.
  EXPECT_EQ(block_cost(one, kOneToken).backward_peak_bytes, 16);
}

TEST(BlockCost, BackwardOfARecomputedSegmentRunsItsForwardFirst) {
  const std::vector<SegmentCost> one = {{"a", {call(100, 40, 8), call(8, 20, 30)}, false}};
  EXPECT_EQ(block_cost(one, kOneToken).backward_peak_bytes, 30);
  EXPECT_EQ(block_cost(one, kOneToken, {"a"}).backward_peak_bytes, 108);
}

TEST(BlockCost, FlopsOfBackwardAreTwiceForwardAndOnceMoreWhenRecomputed) {
  OpCost attention = call(1, 0, 1);
  attention.flops_per_key = 3;
  const std::vector<SegmentCost> two = {{"a", {attention}, false}, {"b", {call(1, 0, 1)}, false}};
  EXPECT_DOUBLE_EQ(block_cost(two, kOneToken).forward_flops, (10 + 3 * 4) + 10);
  EXPECT_DOUBLE_EQ(block_cost(two, kOneToken).backward_flops, 2 * 32);
  EXPECT_DOUBLE_EQ(block_cost(two, kOneToken, {"a"}).backward_flops, 2 * 32 + 22);
}

}  // namespace
}  // namespace stepforge::test
