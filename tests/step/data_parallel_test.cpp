// SPDX-License-Identifier: Apache-2.0
// Programs of several ranks as they are built: their operations, memory and traffic; the checker accepts all.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/step/collectives.h"
#include "stepforge/step/memory.h"
#include "tests/step/programs.h"
#include "tests/support/long_tests.h"
#include "tests/support/sanitizer.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

StepProgram built(int shards, int replicas, RankOptions options, const ModelSpec& model = small_model(1)) {
  options.set_ranks(0, shards, replicas);
  return build_step(model, options);
}

/// The operations except load_batch and update.
std::string outline(const StepProgram& program) {
  std::string text;
  for (const Operation& operation : program.operations)
    if (operation.kind != OpKind::load_batch && operation.kind != OpKind::update)
      text += operation_text(program, operation) + "\n";
  return text;
}

int64_t bytes_of(const StepProgram& program, BufferKind kind, const std::string& owner) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.kind == kind && buffer.name.ends_with(" " + owner)) return buffer.bytes;
  ADD_FAILURE() << "no such buffer of " << owner;
  return 0;
}

TEST(DataParallel, ListingOfAShardedProgram) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  EXPECT_EQ(listing(built(2, 1, options)),
            "count_labels over loss\n"
            "load_batch m0 +batch m0\n"
            "gather_start embedding over fsdp +gather_slot embedding\n"
            "gather_wait embedding\n"
            "gather_start layers.0 over fsdp +gather_slot layers.0\n"
            "forward embedding m0 graph +bundle embedding m0 +graph embedding m0\n"
            "release embedding -gather_slot embedding\n"
            "gather_wait layers.0\n"
            "gather_start head over fsdp +gather_slot head\n"
            "forward layers.0 m0 graph +bundle layers.0 m0 +graph layers.0 m0\n"
            "release layers.0 -gather_slot layers.0\n"
            "start_gradient head +whole_gradient head\n"
            "gather_wait head\n"
            "gather_start layers.0 over fsdp +gather_slot layers.0\n"
            "loss_forward_backward head m0 +bundle_gradient layers.0 m0 -bundle layers.0 m0\n"
            "release head -gather_slot head\n"
            "reduce_start head over fsdp\n"
            "start_gradient layers.0 +whole_gradient layers.0\n"
            "gather_wait layers.0\n"
            "backward layers.0 m0 +bundle_gradient embedding m0 -bundle embedding m0 -graph layers.0 m0"
            " -bundle_gradient layers.0 m0\n"
            "release layers.0 -gather_slot layers.0\n"
            "reduce_wait head -whole_gradient head\n"
            "reduce_start layers.0 over fsdp\n"
            "start_gradient embedding +whole_gradient embedding\n"
            "backward embedding m0 -batch m0 -graph embedding m0 -bundle_gradient embedding m0\n"
            "reduce_wait layers.0 -whole_gradient layers.0\n"
            "reduce_start embedding over fsdp\n"
            "reduce_wait embedding -whole_gradient embedding\n"
            "reduce_loss over loss\n"
            "gradient_norm over fsdp\n"
            "check_finite\n"
            "update embedding\n"
            "update layers.0\n"
            "update head\n");
}

TEST(DataParallel, ReplicasSumTheirShardsDuringTheBackward) {
  EXPECT_EQ(outline(built(2, 2, small_options(1))),
            "count_labels over loss\n"
            "gather_start embedding over fsdp\n"
            "gather_wait embedding\n"
            "forward embedding m0 graph\n"
            "release embedding\n"
            "gather_start layers.0 over fsdp\n"
            "gather_wait layers.0\n"
            "forward layers.0 m0 graph\n"
            "start_gradient head\n"
            "gather_start head over fsdp\n"
            "gather_wait head\n"
            "loss_forward_backward head m0\n"
            "release head\n"
            "reduce_start head over fsdp\n"
            "start_gradient layers.0\n"
            "backward layers.0 m0\n"
            "release layers.0\n"
            "reduce_wait head\n"
            "all_reduce_start head over dp_replicate\n"
            "reduce_start layers.0 over fsdp\n"
            "start_gradient embedding\n"
            "backward embedding m0\n"
            "reduce_wait layers.0\n"
            "all_reduce_start layers.0 over dp_replicate\n"
            "reduce_start embedding over fsdp\n"
            "reduce_wait embedding\n"
            "all_reduce_start embedding over dp_replicate\n"
            "all_reduce_wait head\n"
            "all_reduce_wait layers.0\n"
            "all_reduce_wait embedding\n"
            "reduce_loss over loss\n"
            "gradient_norm over fsdp\n"
            "check_finite\n");
}

TEST(DataParallel, ReplicasWithoutShardsSumWholeGradients) {
  EXPECT_EQ(outline(built(1, 2, small_options(2))),
            "count_labels over loss\n"
            "start_gradient embedding\n"
            "start_gradient layers.0\n"
            "start_gradient head\n"
            "forward embedding m0 graph\n"
            "forward layers.0 m0 graph\n"
            "loss_forward_backward head m0\n"
            "backward layers.0 m0\n"
            "backward embedding m0\n"
            "forward embedding m1 graph\n"
            "forward layers.0 m1 graph\n"
            "loss_forward_backward head m1\n"
            "all_reduce_start head over dp_replicate\n"
            "backward layers.0 m1\n"
            "all_reduce_start layers.0 over dp_replicate\n"
            "backward embedding m1\n"
            "all_reduce_start embedding over dp_replicate\n"
            "all_reduce_wait head\n"
            "all_reduce_wait layers.0\n"
            "all_reduce_wait embedding\n"
            "reduce_loss over loss\n"
            "gradient_norm\n"
            "check_finite\n");
}

TEST(DataParallel, ReducingEachMicroBatchAccumulatesInTheShards) {
  RankOptions options = small_options(2);
  options.reduce.each_micro_batch = true;
  const StepProgram program = built(2, 2, options, small_model(0));
  std::string text;
  for (const Operation& operation : program.operations)
    if (operation.unit == 0 && operation.kind != OpKind::gather_start)
      text += operation_text(program, operation) + "\n";
  EXPECT_EQ(text,
            "gather_wait embedding\n"
            "start_gradient embedding\n"
            "reduce_start embedding over fsdp\n"
            "release embedding\n"
            "reduce_wait embedding\n"
            "start_gradient embedding\n"
            "reduce_start embedding over fsdp accumulate\n"
            "reduce_wait embedding\n"
            "all_reduce_start embedding over dp_replicate\n"
            "all_reduce_wait embedding\n"
            "update embedding\n");
}

TEST(DataParallel, OrderedSumsAreComputedInTheWholeGradientAndReducedOnce) {
  RankOptions options = small_options(4);
  options.ordered = true;
  const StepProgram program = built(2, 1, options, small_model(0));
  std::string text;
  for (const Operation& operation : program.operations)
    if (operation.unit == 1 && operation.lane != Lane::gather && operation.kind != OpKind::gather_wait)
      text += operation_text(program, operation) + "\n";
  EXPECT_EQ(text,
            "start_gradient head\nstash_gradient head level 0\n"
            "start_gradient head\nadd_gradient head level 0\nstash_gradient head level 1\n"
            "start_gradient head\nstash_gradient head level 0\n"
            "start_gradient head\nrelease head\nadd_gradient head level 0\nadd_gradient head level 1\n"
            "reduce_start head over fsdp\nreduce_wait head\nupdate head\n");
}

TEST(DataParallel, OneRankHasNoCollectives) {
  RankOptions options = small_options(2);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  const StepProgram program = built(1, 1, options);
  EXPECT_TRUE(program.groups.empty());
  EXPECT_TRUE(collective_totals(program).empty());
}

TEST(DataParallel, AnEvaluationGathersAndJoinsItsLosses) {
  RankOptions options = small_options(1);
  options.kind = ProgramKind::evaluate;
  std::vector<std::tuple<OpKind, int64_t, int64_t>> totals;
  for (const CollectiveTotal& total : collective_totals(built(4, 2, options)))
    if (total.kind != OpKind::gather_start) totals.emplace_back(total.kind, total.count, total.bytes);
  EXPECT_EQ(totals, (std::vector<std::tuple<OpKind, int64_t, int64_t>>{{OpKind::count_labels, 1, 48},
                                                                       {OpKind::reduce_loss, 1, 8 * 2 * 8}}));
}

TEST(DataParallel, ShardsAreEqualAndMadeOfWholeChunks) {
  ModelSpec model = small_model(1);
  model.units[0].parameters[0].shape = {700, 8};  // 5,600 elements: 6 chunks of 1,024
  const StepProgram program = built(4, 1, small_options(1), model);
  EXPECT_EQ(bytes_of(program, BufferKind::weights, "embedding"), 2 * 1024 * 4);
  EXPECT_EQ(bytes_of(program, BufferKind::gradients, "embedding"), 2 * 1024 * 4);
  EXPECT_EQ(bytes_of(program, BufferKind::optimizer, "embedding"), 2 * 1024 * 8);
  EXPECT_EQ(bytes_of(program, BufferKind::gather_slot, "embedding"), 4 * 2 * 1024 * 4);
  EXPECT_EQ(bytes_of(program, BufferKind::whole_gradient, "embedding"), 4 * 2 * 1024 * 4);
}

TEST(DataParallel, CountsAndBytesOfCollectives) {
  RankOptions options = small_options(3);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  const StepProgram program = built(2, 4, options, small_model(2));
  const int64_t whole = 4 * 2 * 1024;  // elements of all units, each one chunk in two shards
  std::vector<std::tuple<int, OpKind, int64_t, int64_t>> totals;
  for (const CollectiveTotal& total : collective_totals(program))
    totals.emplace_back(total.group, total.kind, total.count, total.bytes);
  // A micro-batch: 3 forward, the head once, 2 backward; the embedding's backward reads no weights.
  const int64_t gathers = 3 * 6;
  EXPECT_EQ(totals, (std::vector<std::tuple<int, OpKind, int64_t, int64_t>>{
                        {0, OpKind::gather_start, gathers, gathers * 2 * 1024 * 2},
                        {0, OpKind::reduce_start, 4, whole * 4},
                        {0, OpKind::gradient_norm, 1, 2 * 8},
                        {1, OpKind::all_reduce_start, 4, whole / 2 * 4},
                        {2, OpKind::count_labels, 1, 48},
                        {2, OpKind::reduce_loss, 1, 8 * (3 + 1) * 8}}));
}

TEST(DataParallel, OnlyAnOrderedNormExchangesChunks) {
  for (const bool ordered : {false, true}) {
    RankOptions options = small_options(1);
    options.ordered = ordered;
    const StepProgram program = built(2, 1, options, small_model(2));
    const Operation& norm = program.operations[find(program, {OpKind::gradient_norm})];
    EXPECT_EQ(norm.bytes, ordered ? 4 * 2 * 8 : 2 * 8);
    EXPECT_EQ(norm.workspace, norm.bytes);
  }
}

TEST(DataParallel, AtMostInFlightReductionsHaveStarted) {
  for (int in_flight = 1; in_flight <= 3; ++in_flight) {
    RankOptions options = small_options(1);
    options.reduce.in_flight = in_flight;
    const StepProgram program = built(2, 1, options, small_model(6));
    int waiting = 0;
    int most = 0;
    for (const Operation& operation : program.operations) {
      waiting += operation.kind == OpKind::reduce_start ? 1 : 0;
      waiting -= operation.kind == OpKind::reduce_wait ? 1 : 0;
      most = std::max(most, waiting);
    }
    EXPECT_EQ(most, in_flight);
  }
}

TEST(DataParallel, ReshardingEveryNthUnitKeepsTheOthersGathered) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, ReshardMode::every_n, 0, 2});
  const StepProgram program = built(2, 1, options, small_model(3));
  std::vector<int> gathers(program.units.size());
  for (const Operation& operation : program.operations)
    if (operation.kind == OpKind::gather_start) ++gathers[static_cast<std::size_t>(operation.unit)];
  EXPECT_EQ(gathers, (std::vector<int>{1, 1, 2, 1, 1}));  // embedding and head are read by one operation
}

TEST(DataParallel, FrozenUnitsAreGatheredButNotReduced) {
  ModelSpec model = small_model(2);
  model.units[1].trainable = false;
  const StepProgram program = built(2, 2, small_options(2), model);
  EXPECT_NO_THROW(check_programs(programs_of(model, 2, 2, small_options(2))));
  for (const Operation& operation : program.operations) {
    if (operation.unit == 1) {
      EXPECT_TRUE(operation.kind == OpKind::gather_start || operation.kind == OpKind::gather_wait ||
                  operation.kind == OpKind::release)
          << operation_text(program, operation);
    }
  }
}

TEST(DataParallel, RefusesOptionsThatDoNotFit) {
  RankOptions options = small_options(1);
  options.reduce.in_flight = 0;
  EXPECT_THROW(built(2, 1, options), UsageError);
  options = small_options(1);
  options.gather.n = 0;
  EXPECT_THROW(built(2, 1, options), UsageError);
  options = small_options(2);
  options.ordered = true;
  options.reduce.each_micro_batch = true;
  EXPECT_THROW(built(2, 1, options), UsageError);
}

struct Job {
  int shards;
  int replicas;
};

const std::vector<Job> kJobs = {{2, 1}, {1, 2}, {2, 2}, {3, 1}, {4, 2}};

/// Builds and checks all ranks, and again by symmetry, which must find the same peak.
void expect_accepted(const ModelSpec& model, const Job& job, const RankOptions& options) {
  const Programs programs = programs_of(model, job.shards, job.replicas, options);
  try {
    const CheckResult result = check_programs(programs);
    const SymmetryProof proof = check_symmetric(programs[0], job.shards * job.replicas, [&](int rank) {
      return views_of(programs[static_cast<std::size_t>(rank)].groups);
    });
    for (const int64_t peak : result.peak_bytes) ASSERT_EQ(peak, proof.peak_bytes);
    ASSERT_EQ(proof.peak_bytes, account(programs[0]).peak_bytes);
  } catch (const ProgramError& error) {
    FAIL() << error.what() << "\n" << listing(programs[static_cast<std::size_t>(error.rank())]);
  }
}

std::vector<Gathers> sharded_gathers() {
  using Reshard = ReshardMode;
  return {{DType::f32, Reshard::never, 0},  {DType::bf16, Reshard::always, 0},
          {DType::f32, Reshard::always, 1}, {DType::bf16, Reshard::always, 3},
          {DType::bf16, Reshard::never, 2}, {DType::f32, Reshard::every_n, 1, 2}};
}

std::vector<RankOptions> variants(int micro_batches) {
  std::vector<RankOptions> all;
  for (const Gathers& gathers : sharded_gathers()) {
    for (const int in_flight : kSanitizer ? std::vector{2} : std::vector{1, 2, 100}) {
      for (const int sum : {0, 1, 2}) {
        for (const auto recompute : {RecomputeMode::none, RecomputeMode::full}) {
          RankOptions options = small_options(micro_batches);
          options.set_gathers(gathers);
          options.reduce = {in_flight, sum == 1};
          options.ordered = sum == 2;
          options.recompute.mode = recompute;
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

TEST(Checker, AcceptsEveryBuiltProgramOfSeveralRanks) {
  const std::vector<int> some = {2};
  const std::vector<int> many = {1, 2, 5};
  for (const int micro_batches : long_tests() ? many : some) {
    for (const RankOptions& options : variants(micro_batches)) {
      for (const Job& job : kJobs)
        for (const bool tied : {false, true})
          ASSERT_NO_FATAL_FAILURE(expect_accepted(small_model(3, tied), job, options));
    }
  }
}

TEST(DataParallel, TrafficFollowsThePartitionAndTheReduceDtype) {
  using Kind = PartitionKind;
  for (const Kind kind : {Kind::flat, Kind::by_tensor, Kind::by_dim}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      RankOptions options = small_options(1);
      options.plan.partition = {kind};
      options.plan.reduce = dtype;
      const ModelSpec model = small_model(1);
      const StepProgram program = built(3, 2, options, model);
      GroupPool pool;
      check_symmetric(program, 6, [&](int rank) { return pool(groups_of(rank, 3, 2)); });
      for (const Operation& operation : program.operations) {
        if (operation.unit < 0) continue;
        const ShardLayout layout(model.units.at(static_cast<std::size_t>(operation.unit)),
                                 options.plan.partition, 3);
        if (operation.kind == OpKind::gather_start) {
          EXPECT_EQ(operation.bytes, layout.joined_size() * 4);
          EXPECT_EQ(operation.workspace, kind == Kind::by_dim ? operation.bytes : 0);
        } else if (operation.kind == OpKind::reduce_start) {
          EXPECT_EQ(operation.bytes, layout.joined_size() * dtype_bytes(dtype));
        } else if (operation.kind == OpKind::all_reduce_start) {
          EXPECT_EQ(operation.bytes, layout.shard_size() * dtype_bytes(dtype));
        }
      }
    }
  }
}

TEST(Checker, AcceptsAnyChoiceOfFrozenUnitsOnSeveralRanks) {
  const std::vector<unsigned> some = {1, 6, 8};
  const std::vector<unsigned> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  for (const unsigned frozen : testing::long_tests() ? all : some) {
    ModelSpec model = small_model(2);
    for (std::size_t u = 0; u < model.units.size(); ++u) model.units[u].trainable = ((frozen >> u) & 1U) == 0;
    for (const RankOptions& options : variants(2))
      ASSERT_NO_FATAL_FAILURE(expect_accepted(model, {2, 2}, options));
  }
}

TEST(Symmetry, ProgramsOfAllRanksHaveTheSameOperations) {
  const Programs programs = sharded(4, 2, 3, small_options());
  for (const StepProgram& program : programs) EXPECT_EQ(listing(programs[0]), listing(program));
}

/// The error of check_symmetric() for 4 x 2 ranks whose groups `damage` has changed.
std::string fault(const std::function<void(int rank, std::vector<RankGroup>&)>& damage) {
  const Programs programs = sharded(4, 2, 1, small_options());
  GroupPool pool;
  try {
    check_symmetric(programs[0], 8, [&](int rank) {
      std::vector<RankGroup> groups = programs[static_cast<std::size_t>(rank)].groups;
      damage(rank, groups);
      return pool(groups);
    });
  } catch (const ProgramError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_fault(const std::string& text, const std::string& rank, const std::string& reason) {
  EXPECT_CONTAINS(text, rank + ",");
  EXPECT_CONTAINS(text, reason);
}

TEST(Symmetry, MembersOfAGroupMustHaveThatGroup) {
  EXPECT_EQ(fault([](int, std::vector<RankGroup>&) {}), "accepted");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 5) groups[0].ranks = {2, 3, 5, 6};
               }),
               "rank 2", "only 1 have that group");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 5) groups[0].ranks = {4, 5, 6, 8};
               }),
               "rank 5", "ascending and below 8");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 5) groups[0].ranks = {3, 4, 5, 6};
               }),
               "rank 3", "only 1 have that group");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 5) groups[0].ranks = {4, 5, 6, 9};
               }),
               "rank 5", "below 8");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 6) groups[1].ranks = {2, 7};
               }),
               "rank 6", "not a member");
  // Ranks 4 and 5 swap their replicas: each group still is the group of as many ranks as it has members.
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 4) groups[1].ranks = {1, 4};
                 if (rank == 5) groups[1].ranks = {0, 5};
               }),
               "rank 4", "has the same first rank as dp_replicate {1, 5}, but other members");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 6) groups[0].ranks = {4, 5, 6};
               }),
               "rank 6", "has 3 ranks, but rank 0 has a group fsdp of 4");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 7) groups.pop_back();
               }),
               "rank 7", "has 2 groups, but rank 0 has 3");
  expect_fault(fault([](int rank, std::vector<RankGroup>& groups) {
                 if (rank == 0) groups[0].ranks = {0, 1, 2, 4};
               }),
               "rank 0", "its program has the group");
}

TEST(Symmetry, RefusesMessagesWithinAClass) {
  const Programs programs = pipeline_1f1b(1);
  EXPECT_THROW(
      check_symmetric(programs[0], 2,
                      [&](int rank) { return views_of(programs[static_cast<std::size_t>(rank)].groups); }),
      ProgramError);
}

TEST(Symmetry, ProvesSixteenThousandRanks) {
  RankOptions options = small_options(8);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  options.gather.prefetch.lists.push_back({"layers.3", {"layers.5"}, {"layers.1", "layers.0"}});
  options.reduce.each_micro_batch = true;
  options.plan.offload = true;
  const int hosts = kSanitizer ? 16 : 256;
  const int ranks = 64 * hosts;
  options.set_ranks(ranks - 1, 64, hosts);
  const StepProgram program = build_step(small_model(126), options);
  GroupPool pool;
  const SymmetryProof proof =
      check_symmetric(program, ranks, [&](int rank) { return pool(groups_of(rank, 64, hosts)); });
  EXPECT_EQ(proof.groups, static_cast<std::size_t>(hosts + 64 + 1));
}

}  // namespace
}  // namespace stepforge::testing
