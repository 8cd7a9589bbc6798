// SPDX-License-Identifier: Apache-2.0
// The proof by classes of ranks: what it accepts, and the groups that it refuses.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/layout/parallel_dims.h"
#include "tests/step/programs.h"
#include "tests/support/sanitizer.h"

namespace stepforge::testing {
namespace {

/// Two pipelines of two stages: ranks 0 and 1 have the first stage, 2 and 3 the last.
class CheckClasses : public ::testing::Test {
 protected:
  CheckClasses() {
    RankOptions options = small_options(3);
    options.plan.dims.dp_shard = 2;
    programs_ = pipeline_programs(small_model(4), options, make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3));
    for (const StepProgram& program : programs_) groups_.push_back(program.groups);
    class_of_ = [](int rank) { return rank / 2; };
  }

  SymmetryProof prove() const {
    const Programs classes = {programs_[0], programs_[2]};
    return check_classes(classes, 4, class_of_, [&](int rank) { return views_of(element(groups_, rank)); });
  }
  void expect_reason(const std::string& reason) const {
    EXPECT_CONTAINS(message_of<ProgramError>([&] { prove(); }), reason);
  }
  RankGroup& group(int rank, std::string_view name) {
    return element(element(groups_, rank), find_group(element(groups_, rank), name));
  }

  Programs programs_;
  std::vector<std::vector<RankGroup>> groups_;  // of each rank
  std::function<int(int)> class_of_;
};

TEST_F(CheckClasses, AgreesWithTheProofOfAllRanks) {
  const CheckResult all = check_programs(programs_);
  const SymmetryProof proof = prove();
  EXPECT_EQ(proof.world_size, 4);
  EXPECT_EQ(proof.class_peaks, (std::vector<int64_t>{all.peak_bytes[0], all.peak_bytes[2]}));
  EXPECT_EQ(proof.peak_bytes, std::max(all.peak_bytes[0], all.peak_bytes[2]));
  EXPECT_EQ(proof.groups, 2U + 2U + 2U + 1U);  // fsdp, loss, pp, world
}

TEST_F(CheckClasses, RefusesAGroupThatARankDoesNotHave) {
  groups_[1].pop_back();
  expect_reason("groups, but rank 0 has");
}

TEST_F(CheckClasses, RefusesAGroupOfAnotherSize) {
  group(1, kPipelineGroup).ranks = {1, 2, 3};
  expect_reason("its group pp has 3 ranks, but rank 0 has a group pp of 2");
}

TEST_F(CheckClasses, RefusesAGroupOfOthers) {
  group(3, kPipelineGroup).ranks = {0, 2};
  expect_reason("rank 3, end of the program: it is not a member of its group pp {0, 2}");
}

TEST_F(CheckClasses, RefusesAGroupThatIsNotThatOfItsProgram) {
  group(0, kPipelineGroup).ranks = {0, 3};
  expect_reason("its program has the group pp {0, 2}, not pp {0, 3}");
}

TEST_F(CheckClasses, RefusesMembersThatAreNotAscendingOrNoRanks) {
  group(1, kPipelineGroup).ranks = {3, 1};
  expect_reason("the ranks of group pp {3, 1} must be ascending and below 4");
  group(1, kPipelineGroup).ranks = {1, 4};
  expect_reason("the ranks of group pp {1, 4} must be ascending and below 4");
}

TEST_F(CheckClasses, RefusesAGroupWithOtherMembersOnAnotherClass) {
  group(1, kPipelineGroup).ranks = {1, 2};
  expect_reason("its group pp {1, 3} has other members on ranks of another class");
}

TEST_F(CheckClasses, RefusesAGroupThatAMemberDoesNotHave) {
  group(1, kShardGroup).ranks = {1, 3};
  expect_reason("of the members of its group fsdp {0, 1}, only 1 have that group");
}

/// Ranks of one class must run in step: the others of its pipeline are then of one class, too.
TEST_F(CheckClasses, RefusesAGroupThatJoinsOtherClassesThanTheFirst) {
  class_of_ = [](int rank) { return rank == 0 || rank == 3 ? 0 : 1; };
  expect_reason("joins other classes of ranks than the first such group");
}

TEST_F(CheckClasses, RefusesClassesThatDisagreeOnACollective) {
  StepProgram& last = programs_[2];
  move(last, find(last, {OpKind::share_loss}), find(last, {OpKind::check_finite}));
  move(last, find(last, {OpKind::reduce_loss}), find(last, {OpKind::check_finite}));
  expect_reason("collective 0 over pp {0, 1} differs from rank 0");
}

TEST_F(CheckClasses, RefusesMessagesThatNoClassReceives) {
  StepProgram& last = programs_[2];
  last.operations[find(last, {OpKind::receive, -1, -1, 2})].micro_batch = 1;
  EXPECT_THROW(prove(), ProgramError);
}

TEST_F(CheckClasses, RefusesACycleOfWaitsBetweenClasses) {
  StepProgram& first = programs_[0];
  move(first, find(first, {OpKind::share_loss}), find(first, {OpKind::forward, -1, -1, 2}));
  expect_reason("a cycle of waits");
}

/// The groups of all ranks, each list of members once.
class MeshGroups {
 public:
  MeshGroups(const ParallelDims& dims, int world_size, std::vector<RankGroup> names)
      : mesh_(dims, world_size), names_(std::move(names)) {}

  std::vector<GroupView> operator()(int rank) {
    std::vector<GroupView> views;
    for (const RankGroup& group : names_) {
      const std::string& axis = group.name;
      auto& members = members_[{axis, mesh_.first(axis, rank)}];
      if (members.empty()) members = mesh_.group(axis, rank);
      views.push_back({group.name, members});
    }
    return views;
  }

 private:
  Mesh mesh_;
  std::vector<RankGroup> names_;
  std::map<std::pair<std::string, int>, std::vector<int>> members_;
};

TEST(CheckManyRanks, SixteenStagesOf1024RanksAreProvedByClasses) {
  constexpr int stages = 16;
  static constexpr int in_stage = kSanitizer ? 128 : 1024;
  constexpr int micro_batches = kSanitizer ? 16 : 64;
  RankOptions options = small_options(micro_batches);
  options.plan.dims = {.dp_shard = in_stage / 8, .tp = 8, .pp = stages};
  options.pipeline.schedule = make_schedule(ScheduleKind::interleaved_1f1b, stages, 2, micro_batches);
  const ModelSpec model = staged(small_model(30), 2 * stages);
  Programs classes;
  for (int stage = 0; stage < stages; ++stage) {
    const ModelSpec part = part_of(model, options.pipeline.schedule, stage);
    const RankId rank{stage * in_stage, stages * in_stage};
    classes.push_back(build_step(part, rank_layout(part.units, options.plan, rank), options));
  }
  MeshGroups groups(options.plan.dims, stages * in_stage, classes[0].groups);
  const auto prove = [&] {
    return check_classes(
        classes, stages * in_stage, [](int rank) { return rank / in_stage; },
        [&](int rank) { return groups(rank); });
  };
  const SymmetryProof proof = prove();
  EXPECT_EQ(proof.class_peaks.size(), static_cast<size_t>(stages));
  EXPECT_GT(proof.groups, static_cast<size_t>(in_stage));
  StepProgram& damaged = classes[7];
  Operation& send = damaged.operations[find(damaged, {OpKind::send})];
  send.tag += 2;
  EXPECT_THROW(prove(), ProgramError);
}

}  // namespace
}  // namespace stepforge::testing
