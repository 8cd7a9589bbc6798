// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_program.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/modelspec/call_cost.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/swiglu.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kWidth = 8;
constexpr int64_t kHidden = 12;

ParameterSpec weight_of(const std::string& name, std::vector<int64_t> shape) {
  return {name, shape, {{"weight", name, shape.front(), {}}}};
}

const ParameterSpec& norm_weight() {
  static const ParameterSpec spec = weight_of("norm", {kWidth});
  return spec;
}
const ParameterSpec& up_weight() {
  static const ParameterSpec spec = weight_of("up", {2 * kHidden, kWidth});
  return spec;
}
const ParameterSpec& down_weight() {
  static const ParameterSpec spec = weight_of("down", {kWidth, kHidden});
  return spec;
}

/// x + dropout(down(swiglu(up(norm(x)))))
CallList mlp(bool dropout = false) {
  ListWriter writer("mlp");
  const int x = writer.input({"x", kWidth});
  int y = writer.call(kRmsNorm, "norm", {x}, {&norm_weight()}, NormAttributes{});
  y = writer.call(kLinear, "up", {y}, {&up_weight()});
  y = writer.call(kSwiglu, "swiglu", {y}, {}, SwigluAttributes{});
  y = writer.call(kLinear, "down", {y}, {&down_weight()});
  return writer.finish({writer.call(kResidualAdd, "sum", {y, x}, {}, ResidualAttributes{0, dropout})});
}

std::vector<std::string> names(const CallList& list, const std::vector<CallStep>& steps) {
  std::vector<std::string> found;
  for (const CallStep& step : steps) {
    const std::string call = step.call < 0 ? "" : list.calls[static_cast<std::size_t>(step.call)].name;
    found.push_back((step.action == CallAction::backward ? "d "
                     : step.action == CallAction::add    ? "add"
                                                         : "") +
                    call);
  }
  return found;
}

std::vector<std::string> saved(const CallList& list, const BlockProgram& program) {
  std::vector<std::string> found;
  for (const int buffer : program.saved)
    found.push_back(list.value(program.buffers[static_cast<std::size_t>(buffer)]).name);
  return found;
}

/// Every tensor that a step reads exists, and none is freed twice or lives on without a reason.
void expect_sound(const BlockProgram& program) {
  std::set<int> there(program.inputs.begin(), program.inputs.end());
  const auto run = [&](const std::vector<CallStep>& steps) {
    for (const CallStep& step : steps) {
      for (const int buffer : step.reads)
        EXPECT_TRUE(buffer == kNoTensor || there.contains(buffer)) << buffer;
      for (const int buffer : step.writes)
        if (buffer != kNoTensor) there.insert(buffer);
      for (const int buffer : step.frees) EXPECT_EQ(there.erase(buffer), 1U) << buffer;
    }
  };
  run(program.forward);
  std::set<int> expected(program.inputs.begin(), program.inputs.end());
  expected.insert(program.outputs.begin(), program.outputs.end());
  expected.insert(program.saved.begin(), program.saved.end());
  EXPECT_EQ(there, expected);
  there = {program.inputs.begin(), program.inputs.end()};
  there.insert(program.saved.begin(), program.saved.end());
  for (const int buffer : program.output_gradients)
    if (buffer != kNoTensor) there.insert(buffer);
  run(program.backward);
  std::set<int> left(program.inputs.begin(), program.inputs.end());
  for (const std::vector<int>* outside : {&program.output_gradients, &program.input_gradients})
    for (const int buffer : *outside)
      if (buffer != kNoTensor) left.insert(buffer);
  EXPECT_EQ(there, left);
}

TEST(CallProgram, BackwardIsTheDerivativeOfEachCallInReverse) {
  const CallList list = mlp();
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_EQ(names(list, program.forward), (std::vector<std::string>{"norm", "up", "swiglu", "down", "sum"}));
  EXPECT_EQ(names(list, program.backward),
            (std::vector<std::string>{"d down", "d swiglu", "d up", "d norm"}));
  EXPECT_EQ(saved(list, program), (std::vector<std::string>{"norm", "norm.1", "up", "swiglu"}));
  expect_sound(program);
}

TEST(CallProgram, OnlyWhatDerivativesReadIsSaved) {
  CallList list = mlp();
  for (Call& call : list.calls)
    for (CallWeight& weight : call.weights) weight.trained = false;
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_EQ(saved(list, program), (std::vector<std::string>{"norm.1", "up"}));
  expect_sound(program);
}

TEST(CallProgram, WithoutBackwardNothingIsSavedAndSumsAreInPlace) {
  const CallList list = mlp();
  const BlockProgram program = derive(list, /*trains=*/false);
  EXPECT_TRUE(program.saved.empty());
  EXPECT_TRUE(program.backward.empty());
  const CallStep& sum = program.forward.back();
  EXPECT_EQ(sum.writes.front(), sum.reads.front());
  EXPECT_NE(sum.writes.front(), program.inputs.front());
  expect_sound(program);
}

TEST(CallProgram, TheGradientOfTheCallerIsNotOverwritten) {
  const CallList list = mlp();
  const BlockProgram program = derive(list, /*trains=*/true);
  const int gradient = program.output_gradients.front();
  for (const CallStep& step : program.backward) EXPECT_EQ(std::ranges::count(step.writes, gradient), 0);
  // The norm adds that of the residual path, over the gradient of its result.
  const CallStep& norm = program.backward.back();
  EXPECT_EQ(norm.reads.back(), gradient);
  EXPECT_EQ(norm.writes.front(), norm.reads.front());
  EXPECT_EQ(program.input_gradients.front(), norm.writes.front());
}

TEST(CallProgram, DropoutMakesAGradientOfItsOwn) {
  const CallList list = mlp(/*dropout=*/true);
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_EQ(names(list, program.backward).front(), "d sum");
  EXPECT_NE(program.backward.front().writes[0], program.output_gradients.front());
  expect_sound(program);
}

TEST(CallProgram, AValueThatIsUsedTwiceHasTheSumOfItsGradients) {
  ListWriter writer("test");
  const int x = writer.input({"x", 2 * kWidth});
  const int a = writer.call(kSwiglu, "a", {x}, {}, SwigluAttributes{});
  const int b = writer.call(kSwiglu, "b", {x}, {}, SwigluAttributes{});
  const CallList list = writer.finish({writer.call(kResidualAdd, "sum", {a, b}, {}, ResidualAttributes{})});
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_EQ(names(list, program.backward), (std::vector<std::string>{"d b", "d a", "add"}));
  expect_sound(program);
}

TEST(CallProgram, ALinearCallAddsItsGradientToThatOfAnotherUseInTheSameMemory) {
  ListWriter writer("test");
  const int x = writer.input({"x", kWidth});
  const ParameterSpec square = weight_of("square", {kWidth, kWidth});
  const int a = writer.call(kLinear, "a", {x}, {&square});
  const int b = writer.call(kLinear, "b", {x}, {&square});
  const CallList list = writer.finish({writer.call(kResidualAdd, "sum", {a, b}, {}, ResidualAttributes{})});
  const BlockProgram program = derive(list, /*trains=*/true);
  ASSERT_EQ(names(list, program.backward), (std::vector<std::string>{"d b", "d a"}));
  EXPECT_EQ(program.backward[1].reads.back(), program.backward[0].writes[0]);
  EXPECT_EQ(program.backward[1].writes[0], program.backward[0].writes[0]);
  expect_sound(program);
}

// x + x: the gradient is passed to x twice, and must not change between.
TEST(CallProgram, AGradientThatPassesToTwoOperandsIsNotOverwrittenBetween) {
  ListWriter writer("test");
  const int x = writer.input({"x", kWidth});
  const int twice = writer.call(kResidualAdd, "twice", {x, x}, {}, ResidualAttributes{});
  const int normed = writer.call(kRmsNorm, "norm", {x}, {&norm_weight()}, NormAttributes{});
  const int last = writer.call(kRmsNorm, "last", {twice}, {&norm_weight()}, NormAttributes{});
  const CallList list =
      writer.finish({writer.call(kResidualAdd, "sum", {last, normed}, {}, ResidualAttributes{})});
  const BlockProgram program = derive(list, /*trains=*/true);
  std::vector<const CallStep*> sums;
  for (const CallStep& step : program.backward)
    if (step.action == CallAction::add) sums.push_back(&step);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(sums[0]->reads[0], sums[1]->reads[0]);
  EXPECT_NE(sums[0]->writes[0], sums[1]->reads[0]);
  expect_sound(program);
}

// A queue computes the gradient of the weight from it later.
TEST(CallProgram, AGradientThatAQueueMayKeepIsNotOverwritten) {
  const ParameterSpec square = weight_of("square", {kWidth, kWidth});
  ListWriter writer("test");
  const int x = writer.input({"x", kWidth});
  const int normed = writer.call(kRmsNorm, "norm", {x}, {&norm_weight()}, NormAttributes{});
  const int product = writer.call(kLinear, "product", {x}, {&square});
  const int sum = writer.call(kResidualAdd, "sum", {product, normed}, {}, ResidualAttributes{});
  const CallList list =
      writer.finish({writer.call(kRmsNorm, "last", {sum}, {&norm_weight()}, NormAttributes{})});
  const BlockProgram program = derive(list, /*trains=*/true);
  ASSERT_EQ(names(list, program.backward), (std::vector<std::string>{"d last", "d product", "d norm"}));
  EXPECT_EQ(program.backward[2].reads[0], program.backward[1].reads[0]);
  EXPECT_NE(program.backward[2].writes[0], program.backward[1].reads[0]);
  expect_sound(program);
}

TEST(CallProgram, AValueWithTheMemoryOfASavedOneIsNotOverwritten) {
  const ParameterSpec square = weight_of("square", {kWidth, kWidth});
  const ParameterSpec bias = weight_of("bias", {kWidth});
  ListWriter writer("test");
  int x = writer.input({"x", kWidth});
  x = writer.call(kLinear, "first", {x}, {&square});
  const int read_later = writer.call(kLinear, "reader", {x}, {&square});
  const int alias = writer.call(kExchange, "alias", {x}, {}, ExchangeAttributes{});
  const int biased = writer.call(kBias, "bias", {alias}, {&bias});
  const CallList list =
      writer.finish({writer.call(kResidualAdd, "sum", {biased, read_later}, {}, ResidualAttributes{})});
  const BlockProgram program = derive(list, /*trains=*/true);
  const CallStep& step = program.forward[2];
  ASSERT_EQ(list.calls[static_cast<std::size_t>(step.call)].name, "bias");
  EXPECT_NE(step.writes, step.reads);
  expect_sound(program);
}

TEST(CallProgram, AnOutputThatIsGivenTwiceHasTheSumOfItsGradients) {
  const ParameterSpec square = weight_of("square", {kWidth, kWidth});
  ListWriter writer("test");
  const int y = writer.call(kLinear, "product", {writer.input({"x", kWidth})}, {&square});
  const CallList list = writer.finish({y, y});
  EXPECT_EQ(names(list, derive(list, /*trains=*/true).backward),
            (std::vector<std::string>{"add", "d product"}));
}

TEST(CallProgram, RecomputationRunsOnlyWhatDerivativesRead) {
  CallList list = mlp();
  recompute_calls(list, std::vector<std::string>{"mlp"});
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_TRUE(program.saved.empty());
  // Not the last product, whose result nothing reads; and each call just before its first reader.
  EXPECT_EQ(names(list, program.backward),
            (std::vector<std::string>{"norm", "up", "swiglu", "d down", "d swiglu", "d up", "d norm"}));
  expect_sound(program);
}

TEST(RecomputeCalls, TakesCallsWithTheirRegionAndNoOtherNames) {
  CallList list = mlp();
  recompute_calls(list, std::vector<std::string>{"mlp.swiglu", "up", "other.norm"});
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_EQ(saved(list, program), (std::vector<std::string>{"norm", "norm.1", "up"}));
  EXPECT_EQ(names(list, program.backward),
            (std::vector<std::string>{"swiglu", "d down", "d swiglu", "d up", "d norm"}));
  expect_sound(program);
}

/// The sum of norms of the results of `biases` calls of a product, which is made again; of the product too if `of_product`.
CallList biased_product(int biases, bool of_product) {
  const ParameterSpec square = weight_of("square", {kWidth, kWidth});
  const ParameterSpec bias = weight_of("bias", {kWidth});
  ListWriter writer("test");
  const int product = writer.call(kLinear, "product", {writer.input({"x", kWidth})}, {&square});
  std::vector<int> values;
  if (of_product) values.push_back(product);
  for (int i = 0; i < biases; ++i) values.push_back(writer.call(kBias, "bias", {product}, {&bias}));
  int sum = -1;
  for (const int value : values) {
    const int normed = writer.call(kRmsNorm, "norm", {value}, {&norm_weight()}, NormAttributes{});
    sum = sum < 0 ? normed : writer.call(kResidualAdd, "sum", {normed, sum}, {}, ResidualAttributes{});
  }
  CallList list = writer.finish({sum});
  for (Call& call : list.calls) call.recompute = call.is(kLinear) || call.is(kBias);
  return list;
}

TEST(CallProgram, ACallIsMadeAgainOnceHoweverManyReadIt) {
  for (const CallList& list : {biased_product(1, true), biased_product(2, false), biased_product(2, true)}) {
    const BlockProgram program = derive(list, /*trains=*/true);
    EXPECT_EQ(std::ranges::count(names(list, program.backward), "product"), 1);
    expect_sound(program);
  }
  // A single reader overwrites it.
  const CallList list = biased_product(1, false);
  const BlockProgram program = derive(list, /*trains=*/true);
  const auto bias = std::ranges::find_if(program.backward, [&](const CallStep& step) {
    return step.action == CallAction::forward &&
           list.calls[static_cast<std::size_t>(step.call)].name == "bias";
  });
  ASSERT_NE(bias, program.backward.end());
  EXPECT_EQ(bias->writes, bias->reads);
}

TEST(CallProgram, WhatLeavesARecomputedRegionIsKept) {
  const ParameterSpec other = weight_of("other", {kWidth});
  ListWriter writer("next");
  const int x = writer.input({"x", kWidth});
  const CallList next = writer.finish({writer.call(kRmsNorm, "after", {x}, {&other}, NormAttributes{})});
  CallList list = joined(mlp(), next);
  recompute_calls(list, std::vector<std::string>{"mlp"});
  // The sum is in the memory of the last product.
  EXPECT_EQ(saved(list, derive(list, /*trains=*/true)), (std::vector<std::string>{"down", "after.1"}));
}

TEST(ListCost, RecomputationCountsTheCallsThatRunAgain) {
  const CallList list = mlp();
  const CostContext context{.tokens = 10, .document_length = 10};
  const double up = 10 * 2.0 * 2 * kHidden * kWidth;
  const double down = 10 * 2.0 * kHidden * kWidth;
  const BlockCost kept = list_cost(list, context);
  EXPECT_DOUBLE_EQ(kept.forward_flops, up + down);
  EXPECT_DOUBLE_EQ(kept.backward_flops, 2 * (up + down));
  EXPECT_DOUBLE_EQ(kept.backward_weight_flops, up + down);
  EXPECT_DOUBLE_EQ(list_cost(list, context, {"mlp"}).backward_flops, 2 * (up + down) + up);
  EXPECT_EQ(kept.saved_bytes, 10 * 4 * (kWidth + 1 + 2 * kHidden + kHidden));
  EXPECT_EQ(list_cost(list, context, {"mlp"}).saved_bytes, 0);
}

TEST(ListCost, FrozenWeightsHaveNoProductsOfTheirGradients) {
  CallList list = mlp();
  list.calls[1].weights.front().trained = false;  // up
  const CostContext context{.tokens = 10, .document_length = 10};
  EXPECT_DOUBLE_EQ(list_cost(list, context).backward_weight_flops, 10 * 2.0 * kHidden * kWidth);
  EXPECT_DOUBLE_EQ(list_cost(list, context).backward_input_flops,
                   list_cost(mlp(), context).backward_input_flops);
}

// bf16 products of weights pack the input, here 64 and 128 columns of it.
TEST(ListCost, AQueueFreesWhatItHasWrittenBeforeItWritesMore) {
  constexpr int64_t kTokens = 10;
  constexpr int64_t kWide = 128;
  constexpr int64_t kNarrow = 64;
  const ParameterSpec down = weight_of("down", {kNarrow, kWide});
  const ParameterSpec up = weight_of("up", {kWide, kNarrow});
  ListWriter writer("products");
  const int hidden = writer.call(kLinear, "down", {writer.input({"x", kWide})}, {&down});
  const CallList list = writer.finish({writer.call(kLinear, "up", {hidden}, {&up})});
  // The product that comes first; its input and gradient are more than the other one needs beyond it.
  const int64_t first = 4 * cpu::bf16_product_words(kTokens, kNarrow);
  const int64_t second = 4 * cpu::bf16_product_words(kTokens, kWide);
  ASSERT_GT(second, first);
  ASSERT_GT(2 * kTokens * (kNarrow + kWide), second - first);
  const CostContext context{.tokens = kTokens, .document_length = kTokens, .compute = DType::bf16};
  EXPECT_EQ(list_cost(list, context).backward_weight_peak_bytes, first);
}

TEST(ListCost, ALinearCallCountsWhatItsBf16ProductsPack) {
  constexpr int64_t kTokens = 10;
  constexpr int64_t kIn = 64;
  constexpr int64_t kOut = 200;
  const ParameterSpec weight = weight_of("weight", {kOut, kIn});
  ListWriter writer("product");
  const CallList list =
      writer.finish({writer.call(kLinear, "product", {writer.input({"x", kIn})}, {&weight})});
  const CostContext context{.tokens = kTokens, .document_length = kTokens, .compute = DType::bf16};
  const BlockCost cost = list_cost(list, context);
  // Results in bf16, and fp32 words of the right factor in panels of 64 columns.
  EXPECT_EQ(cost.forward_peak_bytes, 2 * kTokens * kOut + 4 * kIn * 256);
  EXPECT_EQ(cost.backward_input_peak_bytes, 2 * kTokens * kIn + 4 * kOut * 64);
  EXPECT_EQ(cost.backward_weight_peak_bytes, 4 * kTokens * 64);
}

std::vector<std::string> kinds(const CallList& list) {
  std::vector<std::string> found;
  for (const Call& call : list.calls) found.push_back(call.name);
  return found;
}

CallList divided_mlp() {
  CallList list = mlp();
  list.calls[1].weights[0].division = Division::rows;
  list.calls[3].weights[0].division = Division::columns;
  return list;
}

TEST(OverTensor, PutsExchangesAroundTheProducts) {
  const CallList list = over_tensor(divided_mlp(), {.degree = 2});
  EXPECT_EQ(kinds(list), (std::vector<std::string>{"norm", "enter", "up", "swiglu", "down", "leave", "sum"}));
  const auto& enter = attributes_of<ExchangeAttributes>(list.calls[1]);
  EXPECT_FALSE(enter.forward.has_value());
  EXPECT_EQ(enter.backward, ExchangeKind::sum);
  const auto& leave = attributes_of<ExchangeAttributes>(list.calls[5]);
  EXPECT_EQ(leave.forward, ExchangeKind::sum);
  EXPECT_FALSE(leave.backward.has_value());
  EXPECT_FALSE(list.calls[0].sums_weight_gradients);
  // The sums are in place, and what is not exchanged has no step.
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_EQ(names(list, program.forward),
            (std::vector<std::string>{"norm", "up", "swiglu", "down", "leave", "sum"}));
  EXPECT_EQ(names(list, program.backward),
            (std::vector<std::string>{"d down", "d swiglu", "d up", "d enter", "d norm"}));
  EXPECT_EQ(program.forward[4].writes, program.forward[4].reads);
  expect_sound(program);
}

TEST(OverTensor, WithSlicesARankKeepsItsSliceAndGathersItAgain) {
  const CallList list = over_tensor(divided_mlp(), {.degree = 2, .sequence = true});
  EXPECT_EQ(list.value(list.inputs.front()).rows, Rows::slice);
  EXPECT_EQ(list.value(list.calls[2].results.front()).rows, Rows::tokens);
  EXPECT_EQ(list.value(list.outputs.front()).rows, Rows::slice);
  EXPECT_TRUE(list.calls[0].sums_weight_gradients);
  const BlockProgram program = derive(list, /*trains=*/true);
  EXPECT_EQ(names(list, program.backward), (std::vector<std::string>{"d leave", "d down", "d swiglu", "enter",
                                                                     "d up", "d enter", "d norm"}));
  expect_sound(program);
}

TEST(OverTensor, ALayerThatIsNotDividedGathersAndTakesItsSlice) {
  const CallList list = over_tensor(mlp(), {.degree = 2, .sequence = true, .divided = false});
  EXPECT_EQ(attributes_of<ExchangeAttributes>(list.calls[1]).backward, ExchangeKind::slice);
  EXPECT_EQ(attributes_of<ExchangeAttributes>(list.calls[5]).forward, ExchangeKind::slice);
  EXPECT_FALSE(list.calls[1].recompute);
}

TEST(OverTensor, AsynchronousProductsExchangeByThemselves) {
  const CallList list = over_tensor(divided_mlp(), {.degree = 2, .sequence = true, .async = true});
  EXPECT_EQ(kinds(list), kinds(mlp()));
  EXPECT_TRUE(linear_attributes(list.calls[1]).gathers_input);
  EXPECT_TRUE(linear_attributes(list.calls[3]).scatters_result);
  // The products are the same.
  const CostContext context{.tokens = 10, .document_length = 10, .slices = 2};
  const CallList alone = over_tensor(divided_mlp(), {.degree = 2, .sequence = true});
  EXPECT_DOUBLE_EQ(list_cost(list, context).backward_flops, list_cost(alone, context).backward_flops);
}

TEST(OverTensor, FrozenNormsSumNoGradients) {
  CallList list = divided_mlp();
  list.calls[0].weights[0].trained = false;
  const CostContext context{.tokens = 10, .document_length = 10, .slices = 2};
  const auto sent = [&](const CallList& of) {
    return list_cost(over_tensor(of, {.degree = 2, .sequence = true}), context).backward_exchange[0];
  };
  EXPECT_EQ(sent(list), sent(divided_mlp()) - 4 * kWidth);
}

TEST(OverTensor, LeavesALayerOfOneRankAsItIs) {
  EXPECT_EQ(kinds(over_tensor(mlp(), {})), kinds(mlp()));
}

TEST(OverContext, NeighboursExchangeTokensForHeadsAroundAttention) {
  const AttentionShape shape{4, 2, 6, 0.4};
  ListWriter writer("attention");
  const int x = writer.input({"x", shape.qkv_width()});
  const CallList whole =
      writer.finish({writer.call(kAttention, "attention", {x}, {}, AttentionAttributes{shape})});
  const CallList list = over_context(whole, {4, ContextMethod::ulysses});
  EXPECT_EQ(kinds(list), (std::vector<std::string>{"to heads", "attention", "to tokens"}));
  const LayerValue& joined = list.value(list.calls[0].results.front());
  EXPECT_EQ(joined.times, 4);
  EXPECT_EQ(joined.width, 3 * 6);  // a head of queries, and one of keys and values, which go to two ranks
  EXPECT_EQ(list.value(list.outputs.front()).width, shape.out_width());
  EXPECT_EQ(attributes_of<AttentionAttributes>(list.calls[1]).shape.heads, 1);
  EXPECT_EQ(kinds(over_context(whole, {2, ContextMethod::ring})), kinds(whole));
}

TEST(CallKinds, RefusesOperandsThatDoNotFit) {
  ListWriter writer("test");
  const int x = writer.input({"x", kWidth + 1});
  EXPECT_CONTAINS(message_of<Error>([&] { writer.call(kLinear, "up", {x}, {&up_weight()}); }),
                  "up (linear): operand 0 has width 9, but 8 is needed");
  EXPECT_CONTAINS(
      message_of<Error>([&] { writer.call(kRmsNorm, "norm", {x}, {&norm_weight()}, NormAttributes{}); }),
      "norm (rms_norm): weight 0 has 8 elements, but 9 are needed");
  EXPECT_CONTAINS(message_of<Error>([&] { joined(mlp(), CallList()); }),
                  "makes 1 values, but the next one takes 0");
}

}  // namespace
}  // namespace stepforge::testing
