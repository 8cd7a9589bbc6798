// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_checks.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/layout/parallel_dims.h"
#include "stepforge/modelspec/value_types.h"

namespace stepforge {

namespace {

/// The groups of every rank. Each rank list is made once and shared by its members, found by its first rank.
class GroupTable {
 public:
  GroupTable(std::span<const StepProgram> programs, const Mesh& mesh) : mesh_(mesh) {
    for (const StepProgram& program : programs) {
      std::vector<std::string>& names = names_.emplace_back();
      for (const RankGroup& group : program.groups) {
        names.push_back(group.name);
        if (group.name == kTieGroup)
          for (const int rank : group.ranks) tied_.push_back(mesh.coordinate(kPipelineGroup, rank));
      }
    }
    std::ranges::sort(tied_);
    const auto rest = std::ranges::unique(tied_);
    tied_.erase(rest.begin(), rest.end());
  }

  std::vector<GroupView> operator()(int rank) {
    std::vector<GroupView> groups;
    for (const std::string& name : element(names_, mesh_.coordinate(kPipelineGroup, rank))) {
      const bool tie = name == kTieGroup;
      std::vector<int>& ranks = lists_[name][mesh_.first(tie ? kPipelineGroup : name, rank)];
      if (ranks.empty()) ranks = tie ? tied_ranks(rank) : mesh_.group(name, rank);
      groups.push_back({name, ranks});
    }
    return groups;
  }

 private:
  /// Those of the pipeline of `rank` that hold the tied unit.
  std::vector<int> tied_ranks(int rank) const {
    const std::vector<int> pipeline = mesh_.group(kPipelineGroup, rank);
    std::vector<int> ranks;
    for (const int member : tied_) ranks.push_back(element(pipeline, member));
    return ranks;
  }

  const Mesh& mesh_;
  std::vector<std::vector<std::string>> names_;                   // of the groups of each pipeline rank
  std::map<std::string, std::map<int, std::vector<int>>> lists_;  // by name and first rank
  std::vector<int> tied_;                                         // members of a pipeline
};

}  // namespace

void check_specification(const ModelSpec& model, const RankLayout& layout) {
  const std::array<int, kBlockAxes> groups = {layout.tensor_group, layout.keys_group, layout.heads_group,
                                              layout.expert_group};
  for (std::size_t axis = 0; axis < kBlockAxes; ++axis) {
    if (model.degrees.at(axis) == layout.size_of(groups.at(axis))) continue;
    throw Error(format("the model specification is divided over {} ranks for {}, but the mesh has {} there",
                       model.degrees.at(axis), axis_name(static_cast<BlockAxis>(axis)),
                       layout.size_of(groups.at(axis))));
  }
  check_value_types(model);
}

SymmetryProof prove_programs(std::span<const StepProgram> programs, const RankLayout& layout) {
  const int world_size = layout.id.world_size;
  const Mesh mesh(layout.dims, world_size);
  GroupTable table(programs, mesh);
  return check_classes(
      programs, world_size, [&](int rank) { return mesh.coordinate(kPipelineGroup, rank); },
      [&](int rank) { return table(rank); });
}

}  // namespace stepforge
