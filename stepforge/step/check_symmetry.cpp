// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Symmetry {
 public:
  Symmetry(const StepProgram& program, int world_size)
      : program_(program), world_size_(world_size), known_(program.groups.size()) {}

  void check_operations() const {
    for (std::size_t i = 0; i < program_.operations.size(); ++i)
      if (has_trait(program_.operations[i].kind, kHasPeer))
        throw ProgramError(program_, i, "a message to a single peer cannot be the same on all ranks");
  }

  void add_rank(int rank, const std::vector<GroupView>& groups) {
    if (groups.size() != program_.groups.size()) {
      fail(rank, format("it has {} groups, but rank {} has {}", groups.size(), program_.rank,
                        program_.groups.size()));
    }
    for (std::size_t g = 0; g < groups.size(); ++g) add_group(rank, g, groups[g]);
  }

  /// Every member of every group has reported that group.
  void check_end() const {
    for (const auto& groups : known_) {
      for (const auto& [first, known] : groups) {
        if (known.reports != known.group.ranks.size()) {
          fail(first, format("of the members of its group {}, only {} have that group", key(known.group),
                             known.reports));
        }
      }
    }
  }

  std::size_t groups() const {
    std::size_t count = 0;
    for (const auto& groups : known_) count += groups.size();
    return count;
  }

 private:
  struct Known {
    GroupView group;
    std::size_t reports = 0;  ///< number of ranks that have this group
  };

  [[noreturn]] static void fail(int rank, const std::string& reason) {
    StepProgram empty;
    empty.rank = rank;
    throw ProgramError(empty, 0, reason);
  }

  static std::string key(const GroupView& group) {
    return group_key({std::string(group.name), {group.ranks.begin(), group.ranks.end()}});
  }

  void add_group(int rank, std::size_t index, const GroupView& group) {
    const RankGroup& expected = program_.groups[index];
    if (group.name != expected.name || group.ranks.size() != expected.ranks.size()) {
      fail(rank, format("its group {} has {} ranks, but rank {} has a group {} of {}", group.name,
                        group.ranks.size(), program_.rank, expected.name, expected.ranks.size()));
    }
    if (rank == program_.rank && !std::ranges::equal(group.ranks, expected.ranks))
      fail(rank, format("its program has the group {}, not {}", group_key(expected), key(group)));
    const auto [found, is_new] = known_[index].try_emplace(group.ranks.front(), Known{group, 0});
    Known& known = found->second;
    if (is_new || known.group.ranks.data() != group.ranks.data()) check_members(rank, group);
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), rank))
      fail(rank, format("it is not a member of its group {}", key(group)));
    if (known.group.ranks.data() != group.ranks.data() &&
        !std::ranges::equal(known.group.ranks, group.ranks)) {
      fail(rank, format("its group {} has the same first rank as {}, but other members", key(group),
                        key(known.group)));
    }
    ++known.reports;
  }

  void check_members(int rank, const GroupView& group) const {
    const auto ranks = group.ranks;
    const bool ascending = std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end();
    if (!ascending || ranks.front() < 0 || ranks.back() >= world_size_)
      fail(rank, format("the ranks of group {} must be ascending and below {}", key(group), world_size_));
  }

  const StepProgram& program_;
  int world_size_;
  std::vector<std::map<int, Known>> known_;  // of each group of the program, by first rank
};

}  // namespace

std::vector<GroupView> views_of(const std::vector<RankGroup>& groups) {
  std::vector<GroupView> views;
  for (const RankGroup& group : groups) views.push_back({group.name, group.ranks});
  return views;
}

SymmetryProof check_symmetric(const StepProgram& program, int world_size, const GroupsOfRank& groups_of) {
  check_structure(program, static_cast<std::size_t>(world_size));
  Symmetry symmetry(program, world_size);
  symmetry.check_operations();
  SymmetryProof proof;
  proof.world_size = world_size;
  proof.peak_bytes = check_one(program);
  for (int rank = 0; rank < world_size; ++rank) symmetry.add_rank(rank, groups_of(rank));
  symmetry.check_end();
  proof.groups = symmetry.groups();
  return proof;
}

}  // namespace stepforge
