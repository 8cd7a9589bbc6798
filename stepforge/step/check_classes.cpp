// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// The groups of the ranks of one class.
class Symmetry {
 public:
  Symmetry(const StepProgram& program, int world_size)
      : program_(program), world_size_(world_size), known_(program.groups.size()) {}

  void add_rank(int rank, const std::vector<GroupView>& groups) {
    if (groups.size() != program_.groups.size()) {
      fail(rank, format("it has {} groups, but rank {} has {}", groups.size(), program_.rank,
                        program_.groups.size()));
    }
    for (std::size_t g = 0; g < groups.size(); ++g) add_group(rank, g, groups[g]);
  }

  struct Known {
    GroupView group;
    std::size_t reports = 0;  ///< number of ranks of the class that have this group
  };
  /// Of each group of the program, by first rank.
  const std::vector<std::map<int, Known>>& known() const { return known_; }

  static std::string key(const GroupView& group) {
    return group_key({std::string(group.name), {group.ranks.begin(), group.ranks.end()}});
  }
  [[noreturn]] static void fail(int rank, const std::string& reason) {
    StepProgram empty;
    empty.rank = rank;
    throw ProgramError(empty, 0, reason);
  }

 private:
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

/// All classes together.
class Classes {
 public:
  Classes(std::span<const StepProgram> programs, int world_size, const std::function<int(int)>& class_of)
      : programs_(programs), class_of_(class_of) {
    for (const StepProgram& program : programs) classes_.emplace_back(program, world_size);
  }

  void add_rank(int rank, const std::vector<GroupView>& groups) {
    element(classes_, class_of_(rank)).add_rank(rank, groups);
  }

  /// Every member of every group has reported that group, and each group has equally many members of its classes.
  std::size_t check_end() {
    for (const Symmetry& ranks : classes_)
      for (const auto& by_first : ranks.known())
        for (const auto& [first, known] : by_first) add(known);
    for (const auto& [key, group] : groups_) {
      if (group.reports != group.ranks.size()) {
        Symmetry::fail(group.ranks.front(), format("of the members of its group {}, only {} have that group",
                                                   group_key({key.first, group.ranks}), group.reports));
      }
      if (const auto [pattern, is_new] = patterns_.try_emplace(pattern_key(key.first, group), group.pattern);
          !is_new && pattern->second != group.pattern) {
        Symmetry::fail(group.ranks.front(),
                       format("its group {} joins other classes of ranks than the first such group",
                              group_key({key.first, group.ranks})));
      }
    }
    return groups_.size();
  }

  /// The programs as if each class were one rank: the members of a group become their classes, and groups within one
  /// class are dropped.
  std::vector<StepProgram> quotient() const {
    std::vector<StepProgram> result(programs_.begin(), programs_.end());
    for (std::size_t c = 0; c < result.size(); ++c) {
      StepProgram& program = result[c];
      program.rank = static_cast<int>(c);
      std::vector<bool> within;
      for (RankGroup& group : program.groups) {
        group.ranks = classes_in(group.ranks);
        within.push_back(group.ranks.size() == 1);
      }
      const auto drop = [&](int& group) {
        if (group >= 0 && element(within, group)) group = -1;
      };
      for (Operation& operation : program.operations) {
        if (operation.peer >= 0) operation.peer = class_of_(operation.peer);
        drop(operation.group);
        for (GroupExchange& exchange : operation.exchanges) drop(exchange.group);
      }
    }
    return result;
  }

 private:
  struct Group {
    std::vector<int> ranks;
    std::vector<int> pattern;  ///< the class of each member
    std::size_t reports = 0;
  };
  /// Name and first rank.
  using Key = std::pair<std::string, int>;

  void add(const Symmetry::Known& known) {
    const auto [found, is_new] =
        groups_.try_emplace({std::string(known.group.name), known.group.ranks.front()}, Group{});
    Group& group = found->second;
    if (is_new) {
      group.ranks.assign(known.group.ranks.begin(), known.group.ranks.end());
      for (const int rank : group.ranks) group.pattern.push_back(class_of_(rank));
    } else if (!std::ranges::equal(group.ranks, known.group.ranks)) {
      Symmetry::fail(
          known.group.ranks.front(),
          format("its group {} has other members on ranks of another class", Symmetry::key(known.group)));
    }
    group.reports += known.reports;
  }

  /// Groups of one name that join the same set of classes must do it in the same way.
  std::string pattern_key(const std::string& name, const Group& group) const {
    return group_key({name, classes_in(group.ranks)});
  }

  std::vector<int> classes_in(const std::vector<int>& ranks) const {
    std::vector<int> classes;
    for (const int rank : ranks) classes.push_back(class_of_(rank));
    std::ranges::sort(classes);
    const auto rest = std::ranges::unique(classes);
    classes.erase(rest.begin(), rest.end());
    return classes;
  }

  std::span<const StepProgram> programs_;
  const std::function<int(int)>& class_of_;
  std::vector<Symmetry> classes_;
  std::map<Key, Group> groups_;
  std::map<std::string, std::vector<int>> patterns_;
};

}  // namespace

std::vector<GroupView> views_of(const std::vector<RankGroup>& groups) {
  std::vector<GroupView> views;
  for (const RankGroup& group : groups) views.push_back({group.name, group.ranks});
  return views;
}

SymmetryProof check_classes(std::span<const StepProgram> classes, int world_size,
                            const std::function<int(int rank)>& class_of, const GroupsOfRank& groups_of) {
  SymmetryProof proof;
  proof.world_size = world_size;
  for (const StepProgram& program : classes) {
    check_structure(program, static_cast<std::size_t>(world_size));
    proof.class_peaks.push_back(check_one(program));
  }
  proof.peak_bytes = *std::ranges::max_element(proof.class_peaks);
  Classes all(classes, world_size, class_of);
  for (int rank = 0; rank < world_size; ++rank) all.add_rank(rank, groups_of(rank));
  proof.groups = all.check_end();
  const std::vector<StepProgram> quotient = all.quotient();
  check_messages(quotient);
  check_collectives(quotient);
  check_waits(quotient);
  return proof;
}

}  // namespace stepforge
