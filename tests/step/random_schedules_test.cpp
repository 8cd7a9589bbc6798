// SPDX-License-Identifier: Apache-2.0
// Schedules in any legal order: what the checker accepts, what it must refuse, and in which tree gradients are summed.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/schedule/check.h"
#include "tests/schedule/random_schedule.h"
#include "tests/step/programs.h"
#include "tests/support/long_tests.h"
#include "tests/support/sanitizer.h"

namespace stepforge::testing {
namespace {

RankOptions random_options(Dice& dice, int micro_batches) {
  RankOptions options = small_options(micro_batches);
  options.plan.dims.dp_shard = 1 + dice.below(2);
  options.recompute.mode = dice.toss() ? RecomputeMode::full : RecomputeMode::none;
  options.set_gathers(
      {dice.toss() ? DType::bf16 : DType::f32, static_cast<ReshardMode>(dice.below(4)), dice.below(3)});
  options.reduce.in_flight = 1 + dice.below(2);
  options.reduce.each_micro_batch = dice.below(3) == 0;
  options.plan.offload = dice.below(3) == 0;
  options.pipeline.sends_in_flight = 1 + dice.below(3);
  return options;
}

/// Ranks have no buffers for messages, so a legal order might not run: then the cycle is named. Lowering receives early
/// enough that nearly every one runs.
TEST(RandomSchedules, AreAcceptedOrRefusedWithTheirCycle) {
  const uint64_t seeds = long_tests() ? 10000 : kSanitizer ? 100 : 1000;
  int accepted = 0;
  int refused = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Dice dice(seed);
    const int ranks = 1 + dice.below(4);
    const int stages = ranks + dice.below(3);
    const int micro_batches = 1 + dice.below(5);
    const Schedule schedule =
        random_schedule(dice, micro_batches, random_stages(dice, ranks, stages), ranks, dice.toss());
    ASSERT_NO_THROW(check_schedule(schedule)) << "seed " << seed;
    const Programs programs =
        pipeline_programs(small_model(stages), random_options(dice, micro_batches), schedule);
    try {
      check_programs(programs);
      ++accepted;
    } catch (const ProgramError& error) {
      ++refused;
      ASSERT_CONTAINS(error.what(), "a cycle of waits: rank ") << "seed " << seed;
      ASSERT_CONTAINS(error.what(), "; rank ") << "seed " << seed;
    }
  }
  EXPECT_EQ(accepted + refused, static_cast<int>(seeds));
  EXPECT_GT(accepted, static_cast<int>(seeds * 9 / 10)) << accepted << " accepted, " << refused << " refused";
}

TEST(PipelineMemory, OfOneForwardOneBackwardDoesNotGrowWithTheMicroBatches) {
  const auto peaks = [](int ranks, int micro_batches) {
    return check_programs(pipeline(ScheduleKind::one_f_one_b, ranks, 1, micro_batches, 6)).peak_bytes;
  };
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(peaks(ranks, 8), peaks(ranks, 4)) << ranks;
    EXPECT_EQ(peaks(ranks, 32), peaks(ranks, 4)) << ranks;
  }
  // With as few micro-batches as ranks, a bundle less is received ahead.
  EXPECT_EQ(peaks(4, 32), peaks(4, 8));
  constexpr int64_t bundle = 16 * 8 * 4;
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_LE(peaks(4, 4)[rank], peaks(4, 8)[rank]);
    EXPECT_GE(peaks(4, 4)[rank] + bundle, peaks(4, 8)[rank]);
  }
  const auto all_forward = [](int micro_batches) {
    return check_programs(pipeline(ScheduleKind::gpipe, 4, 1, micro_batches, 6)).peak_bytes;
  };
  EXPECT_GT(all_forward(8)[0], all_forward(4)[0]);
}

/// Sums are commutative, but not associative.
std::string sum_of(const std::string& a, const std::string& b) {
  return "(" + std::min(a, b) + "+" + std::max(a, b) + ")";
}

/// What an operation contributes to a unit: "3", or "head 3" for that of the head to a tied embedding.
std::string leaf_of(const StepProgram& program, const Operation& operation, int unit) {
  const std::string& block = element(program.blocks, operation.block).name;
  const bool tied = block == "head" && element(program.units, unit).name == "embedding";
  return format("{}{}", tied ? "head " : "", operation.micro_batch);
}

/// The gradient of each unit by name at the norm, as the tree of sums that the operations make.
std::map<std::string, std::string> sum_trees(const StepProgram& program) {
  std::map<std::string, std::string> gradients;
  std::map<std::string, std::map<int, std::string>> levels;
  for (const Operation& operation : program.operations) {
    if (operation.kind == OpKind::start_gradient)
      gradients[element(program.units, operation.unit).name].clear();
    if (operation.kind == OpKind::stash_gradient) {
      const std::string& unit = element(program.units, operation.unit).name;
      levels[unit][operation.level] = std::exchange(gradients[unit], "");
    }
    if (operation.kind == OpKind::add_gradient) {
      const std::string& unit = element(program.units, operation.unit).name;
      const std::string& stashed = levels[unit].at(operation.level);
      gradients[unit] = gradients[unit].empty() ? stashed : sum_of(gradients[unit], stashed);
      levels[unit].erase(operation.level);
    }
    if (operation.kind == OpKind::tie_leaf) {
      std::string& gradient = gradients[element(program.units, operation.unit).name];
      const std::string head = format("head {}", operation.micro_batch);
      gradient = sum_of(gradient, gradient == head ? format("{}", operation.micro_batch) : head);
    }
    if (!has_trait(operation.kind, kContributes)) continue;
    for (const int u : element(program.blocks, operation.block).units) {
      std::string& gradient = gradients[element(program.units, u).name];
      const std::string leaf = leaf_of(program, operation, u);
      gradient = gradient.empty() ? leaf : sum_of(gradient, leaf);
    }
  }
  return gradients;
}

/// Tree of the usual order on one rank: micro-batches 2k and 2k + 1 first.
std::string expected_tree(int micro_batches) {
  const StepProgram program = [&] {
    RankOptions options = small_options(micro_batches);
    options.ordered = true;
    return build_step(small_model(), options);
  }();
  return sum_trees(program).at("head");
}

TEST(OrderedSums, HaveTheTreesOfTheDesign) {
  EXPECT_EQ(expected_tree(1), "0");
  EXPECT_EQ(expected_tree(2), "(0+1)");
  EXPECT_EQ(expected_tree(3), "((0+1)+2)");
  EXPECT_EQ(expected_tree(4), "((0+1)+(2+3))");
  EXPECT_EQ(expected_tree(7), "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(OrderedSums, AreTheSameTreeInAnyOrderOfMicroBatches) {
  for (int micro_batches = 1; micro_batches <= 17; ++micro_batches) {
    const std::string expected = expected_tree(micro_batches);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Dice dice(seed * 100 + static_cast<uint64_t>(micro_batches));
      const int ranks = 1 + dice.below(2);
      const Schedule schedule =
          random_schedule(dice, micro_batches, random_stages(dice, ranks, ranks), ranks, dice.toss());
      RankOptions options = small_options(micro_batches);
      options.plan.dims.dp_shard = 1;
      options.ordered = true;
      for (const StepProgram& program : pipeline_programs(small_model(), options, schedule)) {
        for (const auto& [unit, tree] : sum_trees(program))
          EXPECT_EQ(tree, expected) << unit << ", seed " << seed << ", " << micro_batches;
      }
    }
  }
}

/// Of a tied embedding: what embedding and head contribute for a micro-batch is added first.
std::string tied_tree(int begin, int size) {
  if (size == 1) return sum_of(format("{}", begin), format("head {}", begin));
  int left = 1;
  while (left * 2 < size) left *= 2;
  return sum_of(tied_tree(begin, left), tied_tree(begin + left, size - left));
}

/// Embedding and head are on one rank, alone or in two stages, or on two ranks.
TEST(OrderedSums, OfATiedEmbeddingAreTheSameTreeInAnyOrderOfMicroBatches) {
  for (int micro_batches = 1; micro_batches <= 17; ++micro_batches) {
    RankOptions options = small_options(micro_batches);
    options.plan.dims.dp_shard = 1;
    options.ordered = true;
    for (uint64_t seed = 0; seed < 16; ++seed) {
      Dice dice(seed * 100 + static_cast<uint64_t>(micro_batches));
      const int ranks = 1 + dice.below(2);
      const Schedule schedule = random_schedule(
          dice, micro_batches, random_stages(dice, ranks, ranks + dice.below(3)), ranks, dice.toss());
      const int first = schedule.rank_of_stage.front();
      const int last = schedule.rank_of_stage.back();
      options.plan.tied = first == last ? TiedUnit{} : TiedUnit{"embedding", first, last};
      for (const StepProgram& program : pipeline_programs(small_model(2, true), options, schedule)) {
        for (const auto& [unit, tree] : sum_trees(program)) {
          EXPECT_EQ(tree, unit == "embedding" ? tied_tree(0, micro_batches) : expected_tree(micro_batches))
              << unit << ", seed " << seed << ", " << micro_batches;
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
