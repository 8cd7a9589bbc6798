#include <algorithm>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Symmetry {
 public:
  Symmetry(const StepProgram& program, int world_size) : program_(program), world_size_(world_size) {}

  void check_operations() const {
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      const OpKind kind = program_.operations[i].kind;
      if (kind == OpKind::send || kind == OpKind::receive)
        throw ProgramError(program_, i, "a message to one peer cannot be the same on all ranks");
    }
  }

  void add_rank(int rank, std::vector<ProgramGroup> groups) {
    if (groups.size() != program_.groups.size()) {
      fail(rank, format("it has {} groups, but rank {} has {}", groups.size(), program_.rank,
                        program_.groups.size()));
    }
    for (std::size_t g = 0; g < groups.size(); ++g) add_group(rank, g, std::move(groups[g]));
  }

  /// Every member of every group has claimed it.
  void check_end() const {
    for (const auto& [place, known] : known_) {
      if (known.claims != known.group.ranks.size()) {
        fail(known.group.ranks.front(), format("of the members of its group {}, only {} have that group",
                                               group_key(known.group), known.claims));
      }
    }
  }

  std::size_t groups() const { return known_.size(); }

 private:
  struct Known {
    ProgramGroup group;
    std::size_t claims = 0;
  };

  [[noreturn]] static void fail(int rank, const std::string& reason) {
    StepProgram nothing;
    nothing.rank = rank;
    throw ProgramError(nothing, 0, reason);
  }

  void add_group(int rank, std::size_t index, ProgramGroup group) {
    const ProgramGroup& model = program_.groups[index];
    if (group.name != model.name || group.ranks.size() != model.ranks.size()) {
      fail(rank, format("its group {} has {} ranks, but rank {} has a group {} of {}", group.name,
                        group.ranks.size(), program_.rank, model.name, model.ranks.size()));
    }
    if (rank == program_.rank && group.ranks != model.ranks)
      fail(rank, format("its program has the group {}, not {}", group_key(model), group_key(group)));
    check_members(rank, group);
    const std::pair place(index, group.ranks.front());
    const auto found = known_.find(place);
    if (found == known_.end()) {
      known_.emplace(place, Known{std::move(group), 1});
      return;
    }
    if (found->second.group.ranks != group.ranks) {
      fail(rank, format("its group {} has the same first rank as {}, but other members", group_key(group),
                        group_key(found->second.group)));
    }
    ++found->second.claims;
  }

  void check_members(int rank, const ProgramGroup& group) const {
    const std::vector<int>& ranks = group.ranks;
    const bool ascending =
        std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
    if (!ascending || ranks.front() < 0 || ranks.back() >= world_size_) {
      fail(rank,
           format("the ranks of group {} must be ascending and below {}", group_key(group), world_size_));
    }
    if (!std::binary_search(ranks.begin(), ranks.end(), rank))
      fail(rank, format("it is not a member of its group {}", group_key(group)));
  }

  const StepProgram& program_;
  int world_size_;
  std::map<std::pair<std::size_t, int>, Known> known_;  // by the group's index and first rank
};

}  // namespace

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

StepProgram same_program_on(int rank, std::vector<ProgramGroup> groups, const StepProgram& program) {
  StepProgram result = program;
  result.rank = rank;
  result.groups = std::move(groups);
  return result;
}

}  // namespace stepforge
