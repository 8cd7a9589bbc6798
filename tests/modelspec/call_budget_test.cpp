// SPDX-License-Identifier: Apache-2.0
// Choices of calls that backward makes again, against all sets of calls of drawn lists.
#include "stepforge/modelspec/call_budget.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_cost.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/operations.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/swiglu.h"
#include "tests/support/dice.h"

namespace stepforge::testing {
namespace {

using Strings = std::vector<std::string>;

constexpr int64_t kNarrow = 8;
constexpr int64_t kWide = 2 * kNarrow;
constexpr CostContext kTenTokens{.tokens = 10, .document_length = 10};

/// Draws lists of two regions, in which any earlier value may be an operand. What no call reads is an output.
class ListDrawer {
 public:
  explicit ListDrawer(uint64_t seed) : dice_(seed) {}

  CallList draw(int calls) {
    list_ = {};
    list_.values = {{"x", kNarrow}};
    list_.inputs = {0};
    for (int c = 0; c < calls; ++c) add(c < calls / 2 ? "first" : "second", format("c{}", c));
    for (int value = 1; value < static_cast<int>(list_.values.size()); ++value)
      if (list_.value(value).differentiable && !is_read(value)) list_.outputs.push_back(value);
    return list_;
  }

 private:
  void add(const std::string& region, const std::string& name) {
    const int x = any_value();
    const int64_t width = list_.value(x).width;
    Call call{.kind = &kLinear, .name = name, .region = region, .operands = {x}};
    switch (dice_.below(7)) {
      case 0:
        call.kind = &kRmsNorm;
        call.weights = {weight({width})};
        call.attributes = NormAttributes{};
        break;
      case 1:
        call.kind = &kBias;
        call.weights = {weight({width})};
        break;
      case 2:
        call.kind = &kExchange;
        call.attributes =
            ExchangeAttributes{.forward = dice_.toss() ? std::nullopt : std::optional(ExchangeKind::sum),
                               .backward = ExchangeKind::sum};
        break;
      case 3:
        call.kind = &kResidualAdd;
        call.operands = {x, value_of_width(width)};
        call.attributes = ResidualAttributes{0, dice_.toss()};
        break;
      case 4:
      case 5:
        if (width == kWide) {
          call.kind = &kSwiglu;
          call.attributes = SwigluAttributes{};
          break;
        }
        [[fallthrough]];
      default:
        call.weights = {weight({dice_.toss() ? kNarrow : kWide, width})};
    }
    append(list_, std::move(call));
  }

  CallWeight weight(std::vector<int64_t> shape) {
    return {.name = "weight", .shape = std::move(shape), .trained = dice_.below(5) != 0};
  }

  bool is_read(int value) const {
    return std::ranges::any_of(
        list_.calls, [&](const Call& call) { return std::ranges::count(call.operands, value) > 0; });
  }
  /// Most often one that no call reads yet.
  int any_value() {
    const bool fresh = dice_.below(4) != 0;
    for (int tries = 0;; ++tries) {
      const int value = dice_.below(static_cast<int>(list_.values.size()));
      if (list_.value(value).differentiable && !(fresh && tries < 20 && is_read(value))) return value;
    }
  }
  int value_of_width(int64_t width) {
    for (;;)
      if (const int value = any_value(); list_.value(value).width == width) return value;
  }

  Dice dice_;
  CallList list_;
};

/// What backward makes again, by the derived steps.
double work_again(CallList list, const Strings& recomputed) {
  recompute_calls(list, recomputed);
  const std::vector<CallInfo> calls = call_infos(list);
  double work = 0;
  for (const CallStep& step : derive(list, /*trains=*/true).backward)
    if (step.action == CallAction::forward)
      work += call_work(calls[static_cast<std::size_t>(step.call)], kTenTokens);
  return work;
}

/// Those that make no output.
Strings calls_inside(const CallList& list) {
  Strings names;
  for (const Call& call : list.calls)
    if (std::ranges::count(list.outputs, call.results.front()) == 0) names.push_back(call.full_name());
  return names;
}

BlockSpec block_of(const CallList& list) {
  BlockSpec block;
  block.list = block.generation = list;
  return block;
}

constexpr int kDrawnLists = 60;
constexpr int kDrawnCalls = 9;

TEST(RecomputationChoices, HaveThePricesOfTheDerivedSteps) {
  for (uint64_t seed = 0; seed < kDrawnLists; ++seed) {
    const CallList list = ListDrawer(seed).draw(2 * kDrawnCalls);
    for (const RecomputationChoice& choice : recomputation_choices(block_of(list), kTenTokens)) {
      EXPECT_EQ(choice.saved_bytes, list_cost(list, kTenTokens, choice.recomputed).saved_bytes) << seed;
      EXPECT_DOUBLE_EQ(choice.work, work_again(list, choice.recomputed)) << seed;
    }
  }
}

TEST(RecomputationChoices, NoSetOfCallsKeepsAsLittleForLessWork) {
  for (uint64_t seed = 0; seed < kDrawnLists; ++seed) {
    const CallList list = ListDrawer(seed).draw(kDrawnCalls);
    const std::vector<RecomputationChoice> choices = recomputation_choices(block_of(list), kTenTokens);
    const Strings inside = calls_inside(list);
    for (uint32_t set = 0; set < 1U << inside.size(); ++set) {
      Strings names;
      for (std::size_t c = 0; c < inside.size(); ++c)
        if ((set >> c & 1U) != 0) names.push_back(inside[c]);
      const int64_t bytes = list_cost(list, kTenTokens, names).saved_bytes;
      const double work = work_again(list, names);
      EXPECT_TRUE(std::ranges::any_of(choices,
                                      [&](const RecomputationChoice& choice) {
                                        return choice.saved_bytes <= bytes &&
                                               choice.work <= work * (1 + 1e-12);
                                      }))
          << seed << " " << set;
    }
  }
}

TEST(RecomputationChoices, AreNeverWorseThanRegions) {
  for (uint64_t seed = 0; seed < kDrawnLists; ++seed) {
    const CallList list = ListDrawer(seed).draw(2 * kDrawnCalls);
    const std::vector<RecomputationChoice> choices = recomputation_choices(block_of(list), kTenTokens);
    for (const Strings& regions : {Strings{"first"}, Strings{"second"}, Strings{"first", "second"}}) {
      const int64_t bytes = list_cost(list, kTenTokens, regions).saved_bytes;
      const double work = work_again(list, regions);
      EXPECT_TRUE(std::ranges::any_of(choices, [&](const RecomputationChoice& choice) {
        return choice.saved_bytes <= bytes && choice.work <= work * (1 + 1e-12);
      })) << seed;
    }
  }
}

TEST(RecomputationWithin, KeepsAllWithAFullBudgetTheLeastWithNoneAndFitsBetween) {
  for (uint64_t seed = 0; seed < kDrawnLists; ++seed) {
    const CallList list = ListDrawer(seed).draw(2 * kDrawnCalls);
    const BlockSpec block = block_of(list);
    const auto saved = [&](double budget) {
      return static_cast<double>(
          list_cost(list, kTenTokens, recomputation_within(block, kTenTokens, budget).recomputed)
              .saved_bytes);
    };
    EXPECT_TRUE(recomputation_within(block, kTenTokens, 1).recomputed.empty());
    const double most = saved(1);
    const double least = saved(0);
    EXPECT_EQ(least, static_cast<double>(list_cost(list, kTenTokens, calls_inside(list)).saved_bytes))
        << seed;
    for (const double budget : {0.1, 0.25, 0.5, 0.9})
      EXPECT_LE(saved(budget), least + budget * (most - least)) << seed;
  }
}

/// A product, its activation, and two norms.
BlockSpec small_block() {
  constexpr int64_t kWidth = 256;
  const ParameterSpec up{"up", {2 * kWidth, kWidth}, {{"weight", "up", 2 * kWidth, {}}}};
  const ParameterSpec norm{"norm", {kWidth}, {{"weight", "norm", kWidth, {}}}};
  ListWriter writer("mlp");
  int y = writer.call(kLinear, "up", {writer.input({"x", kWidth})}, {&up});
  y = writer.call(kSwiglu, "act", {y}, {}, SwigluAttributes{});
  y = writer.call(kRmsNorm, "norm", {y}, {&norm}, NormAttributes{});
  return block_of(writer.finish({writer.call(kRmsNorm, "last", {y}, {&norm}, NormAttributes{})}));
}

TEST(RecomputationWithin, MakesCheapValuesAgainBeforeProducts) {
  // It keeps the product, half of all bytes, and makes again the activation and the first norm, a quarter each.
  const RecomputationChoice choice = recomputation_within(small_block(), kTenTokens, 0.6);
  EXPECT_EQ(choice.recomputed, (Strings{"mlp.act", "mlp.norm"}));
}

TEST(CallsNamed, AreThoseOfAKindOrOfANameButNotWhatLeavesTheBlock) {
  const BlockSpec block = small_block();
  EXPECT_EQ(calls_named(block, Strings{"rms_norm"}), Strings{"mlp.norm"});
  EXPECT_EQ(calls_named(block, Strings{"mlp.up", "swiglu"}), (Strings{"mlp.up", "mlp.act"}));
  EXPECT_TRUE(calls_named(block, Strings{"mlp", "up"}).empty());
  EXPECT_EQ(call_names(block),
            (Strings{"linear", "swiglu", "rms_norm", "mlp.up", "mlp.act", "mlp.norm", "mlp.last"}));
}

TEST(RecomputationChoices, ABlockOfYourOwnKeepsEverything) {
  ListWriter writer("mlp");
  const int x = writer.input({"x", 8});
  const OperationsAttributes first{.results = {{"", 16}}, .derivative_reads = {.operands = 1}, .flops = 200};
  const OperationsAttributes last{.results = {{"", 8}}, .derivative_reads = {.operands = 1}};
  const int y = writer.call(kOperations, "first", {x}, {}, first);
  const BlockSpec block = block_of(writer.finish({writer.call(kOperations, "last", {y}, {}, last)}));
  const std::vector<RecomputationChoice> choices = recomputation_choices(block, kTenTokens);
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_TRUE(choices.front().recomputed.empty());
  EXPECT_EQ(choices.front().saved_bytes, 10 * 16 * 4);
  EXPECT_EQ(block_cost(block, kTenTokens).saved_bytes, 10 * 16 * 4);
  EXPECT_DOUBLE_EQ(block_cost(block, kTenTokens).forward_flops, 10 * 200);
  EXPECT_TRUE(call_names(block).empty());
  EXPECT_TRUE(region_names(block).empty());
  EXPECT_TRUE(calls_named(block, Strings{"operations", "mlp.first"}).empty());
}

}  // namespace
}  // namespace stepforge::testing
