// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_checks.h"

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
  GroupTable(const StepProgram& program, const Mesh& mesh) : mesh_(mesh), lists_(program.groups.size()) {
    for (const RankGroup& group : program.groups) names_.push_back(group.name);
  }

  std::vector<GroupView> operator()(int rank) {
    std::vector<GroupView> groups;
    for (std::size_t g = 0; g < names_.size(); ++g) {
      std::vector<int>& ranks = lists_[g][mesh_.first(names_[g], rank)];
      if (ranks.empty()) ranks = mesh_.group(names_[g], rank);
      groups.push_back({names_[g], ranks});
    }
    return groups;
  }

 private:
  const Mesh& mesh_;
  std::vector<std::string> names_;
  std::vector<std::map<int, std::vector<int>>> lists_;  // of each group of the program, by first rank
};

}  // namespace

void check_specification(const ModelSpec& model, const RankLayout& layout) {
  const std::array<int, kBlockAxes> groups = {layout.tensor_group, layout.keys_group, layout.heads_group};
  for (std::size_t axis = 0; axis < kBlockAxes; ++axis) {
    if (model.degrees.at(axis) == layout.size_of(groups.at(axis))) continue;
    throw Error(format("the model specification is divided over {} ranks for {}, but the mesh has {} there",
                       model.degrees.at(axis), axis_name(static_cast<BlockAxis>(axis)),
                       layout.size_of(groups.at(axis))));
  }
  check_value_types(model);
}

SymmetryProof prove_programs(const StepProgram& program, const RankLayout& layout) {
  const int world_size = layout.id.world_size;
  const Mesh mesh(layout.dims, world_size);
  GroupTable table(program, mesh);
  return check_symmetric(program, world_size, [&](int rank) { return table(rank); });
}

}  // namespace stepforge
