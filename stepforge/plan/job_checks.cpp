// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_checks.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/lr_schedule.h"
#include "stepforge/catalog/param_patterns.h"
#include "stepforge/layout/parallel_dims.h"
#include "stepforge/modelspec/value_types.h"

namespace stepforge {

namespace {

std::string counted(int64_t count, const std::string& noun) {
  return format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

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
  /// The ranks of the pipeline of `rank` that hold the tied unit.
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

/// Throws UsageError if debug.plant_nan_block is not a block of the model.
void check_planted_block(const LoadedConfig& loaded, const ModelSpec& whole) {
  const std::string& planted = loaded.config.debug.plant_nan_block;
  if (planted.empty() || std::ranges::count(whole.blocks, planted, &BlockSpec::name) > 0) return;
  std::vector<std::string> names;
  for (const BlockSpec& block : whole.blocks) names.push_back(block.name);
  throw UsageError(format("{}: debug.plant_nan_block = \"{}\": the model has no such block; it has: {}",
                          where(loaded, "debug.plant_nan_block"), planted, join(names, ", ")));
}

}  // namespace

void check_job(const LoadedConfig& loaded, const ModelSpec& whole) {
  static_cast<void>(match_param_groups(loaded.config.optimizer, whole));
  check_planted_block(loaded, whole);
}

std::string schedule_warning(const Config& config, int64_t steps) {
  const LrSchedulerConfig& lr = config.lr_scheduler;
  const int64_t length = lr.total_steps > 0 ? lr.total_steps : std::max<int64_t>(1, steps);
  const LearningRateSchedule schedule(lr, length, config.extensions);
  const int64_t warmup = lr.warmup_ratio < 0.0 ? lr.warmup_steps : schedule.warmup_steps();
  if (warmup >= length) {
    return format(
        "the warm-up ({} steps) is not shorter than the schedule ({} steps): "
        "the learning rate rises to the end and never decays; "
        "lower lr_scheduler.warmup_steps or warmup_ratio (a tenth of the schedule is {})",
        warmup, length, counted(std::max<int64_t>(1, length / 10), "step"));
  }
  if (!schedule.decay_was_cut()) return "";
  return format("warm-up and decay are longer than the schedule of {} steps: the decay is shortened", length);
}

std::string threads_warning(const std::string& setting, int64_t threads, int cores) {
  constexpr int64_t kMostPerCore = 64;
  if (threads <= cores) return "";
  const std::string text =
      format("{}, but {} can be used here: threads that share a core wait for each other", setting,
             counted(cores, "core"));
  if (threads > kMostPerCore * cores) {
    throw UsageError(format("{}, and with more than {} on each a step takes minutes; use at most {}", text,
                            kMostPerCore, cores));
  }
  return format("{}; {} would be faster", text, cores);
}

void check_specification(const Job& job) {
  const ModelSpec& model = job.model();
  const RankLayout& layout = job.layout;
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
