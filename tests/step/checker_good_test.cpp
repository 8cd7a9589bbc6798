// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "stepforge/step/memory.h"
#include "tests/step/programs.h"
#include "tests/support/long_tests.h"

namespace stepforge::testing {
namespace {

std::vector<RecomputePolicy> recompute_policies() {
  std::vector<RecomputePolicy> policies(6);
  policies[1].mode = RecomputeMode::full;
  policies[2].mode = RecomputeMode::every_n;
  policies[2].n = 2;
  policies[3].mode = RecomputeMode::blocks;
  policies[3].blocks = {"embedding", "layers.1"};
  policies[4].mode = RecomputeMode::regions;
  policies[4].regions = {"attention"};
  policies[5].mode = RecomputeMode::budget;
  policies[5].budget = 0.5;
  return policies;
}

std::vector<Gathers> gather_policies() {
  std::vector<Gathers> policies = {Gathers{}};
  for (const auto reshard : {ReshardMode::never, ReshardMode::always})
    for (int prefetch = 0; prefetch < 4; ++prefetch) policies.push_back({DType::bf16, reshard, prefetch});
  return policies;
}

/// Builds and checks the program, and compares the checker's peak with the account's.
void expect_accepted(const ModelSpec& model, const RankOptions& options) {
  const StepProgram program = build_step(model, options);
  try {
    const CheckResult result = check_programs({&program, 1});
    ASSERT_EQ(result.peak_bytes, std::vector<int64_t>{account(program).peak_bytes});
  } catch (const ProgramError& error) {
    FAIL() << error.what() << "\n" << listing(program);
  }
}

TEST(Checker, AcceptsEveryBuiltTrainingProgram) {
  const std::vector<int> some = {1, 2, 5};
  const std::vector<int> many = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const int micro_batches : long_tests() ? many : some) {
    RankOptions options = small_options(micro_batches);
    for (const RecomputePolicy& recompute : recompute_policies()) {
      for (const Gathers& gathers : gather_policies()) {
        for (const bool ordered : {false, true}) {
          for (const bool tied : {false, true}) {
            options.recompute = recompute;
            options.set_gathers(gathers);
            options.ordered = ordered;
            expect_accepted(small_model(3, tied), options);
          }
        }
      }
    }
  }
}

TEST(Checker, AcceptsEveryBuiltForwardProgram) {
  for (const ProgramKind kind : {ProgramKind::evaluate, ProgramKind::generate}) {
    for (const Gathers& gathers : gather_policies()) {
      for (int micro_batches = 1; micro_batches <= 3; ++micro_batches) {
        RankOptions options = small_options(micro_batches);
        options.kind = kind;
        options.set_gathers(gathers);
        options.kv_cache_tokens = 16;
        expect_accepted(small_model(3), options);
      }
    }
  }
}

TEST(Checker, AcceptsAnyChoiceOfFrozenUnits) {
  for (unsigned frozen = 0; frozen + 1 < 16; ++frozen) {
    ModelSpec model = small_model(2);
    for (std::size_t u = 0; u < model.units.size(); ++u) model.units[u].trainable = ((frozen >> u) & 1U) == 0;
    RankOptions options = small_options(3);
    options.ordered = frozen % 2 == 0;
    options.recompute.mode = RecomputeMode::full;
    expect_accepted(model, options);
  }
}

TEST(Checker, AcceptsShardedUnitsOverTwoRanks) {
  for (int prefetch = 0; prefetch < 3; ++prefetch) {
    RankOptions options = small_options();
    options.gather.reshard = ReshardMode::always;
    options.gather.prefetch = prefetch;
    EXPECT_NO_THROW(check_programs(sharded(2, 1, 3, options)));
  }
}

TEST(Checker, AcceptsShardsOfTwoInTwoReplicas) {
  RankOptions options = small_options();
  options.ordered = true;
  EXPECT_NO_THROW(check_programs(sharded(2, 2, 4, options)));
}

TEST(Checker, AcceptsOneForwardOneBackwardOverTwoStages) {
  for (int micro_batches = 1; micro_batches <= 5; ++micro_batches) {
    const Programs programs = pipeline_1f1b(micro_batches);
    EXPECT_NO_THROW(check_programs(programs)) << listing(programs[0]);
  }
}

TEST(Checker, AcceptsEveryScheduleOverAnyNumberOfStagesAndMicroBatches) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string_view name = kind.name;
    const auto [min, max] = kind.stages;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int stages = min; stages <= std::min(max, 3); ++stages) {
        for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
          SCOPED_TRACE(
              format("{}, {} ranks, {} stages each, {} micro-batches", name, ranks, stages, micro_batches));
          EXPECT_NO_THROW(check_programs(pipeline(kind, ranks, stages, micro_batches, 11)));
        }
      }
    }
  }
}

TEST(Checker, FindsThePeakOfLiveBytes) {
  StepProgram program = build_step(small_model(1), small_options(1));
  const auto at = find(program, {OpKind::load_batch});
  program.operations[at].workspace = int64_t{1} << 30;
  int64_t persistent = 0;
  for (const Buffer& buffer : program.buffers) persistent += buffer.persistent ? buffer.bytes : 0;
  EXPECT_EQ(check_programs({&program, 1}).peak_bytes.front(), persistent + 16 * 24 + (int64_t{1} << 30));
}

}  // namespace
}  // namespace stepforge::testing
