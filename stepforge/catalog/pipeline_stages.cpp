// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/pipeline_stages.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/cost.h"

namespace stepforge {

namespace {

constexpr const char* kLayersPerStage = "parallelism.pipeline_parallel_layers_per_stage";
constexpr const char* kFirstLess = "parallelism.pipeline_parallel_first_stage_less_layers";
constexpr const char* kLastLess = "parallelism.pipeline_parallel_last_stage_less_layers";
constexpr const char* kBlocks = "parallelism.pipeline_parallel_stages";

/// The layers of a model, and those for which the embedding and the head count (torchtitan's rule).
struct CountedLayers {
  int64_t layers = 0;
  int64_t first = 1;
  int64_t last = 1;

  int64_t all() const { return layers + first + last; }
  std::string text() const {
    return format("{} layers, {} for the embedding ({}) and {} for the head ({})", layers, first, kFirstLess,
                  last, kLastLess);
  }
};

bool counts_layers(const StagePlan& plan) {
  return plan.layers_per_stage > 0 || plan.first_stage_less_layers || plan.last_stage_less_layers;
}

/// The blocks up to the first head; those after it are in its stage.
std::size_t divisible_blocks(const ModelSpec& whole) {
  const auto head = std::ranges::find(whole.blocks, BlockKind::head, &BlockSpec::kind);
  return static_cast<std::size_t>(head - whole.blocks.begin()) + (head == whole.blocks.end() ? 0 : 1);
}

CountedLayers counted_layers(const ModelSpec& whole, const StagePlan& plan) {
  CountedLayers counted;
  for (std::size_t b = 0; b < divisible_blocks(whole); ++b)
    if (whole.blocks[b].kind == BlockKind::layer) ++counted.layers;
  counted.first = plan.first_stage_less_layers.value_or(counted.first);
  counted.last = plan.last_stage_less_layers.value_or(counted.last);
  for (const auto& [key, less] : {std::pair(kFirstLess, counted.first), std::pair(kLastLess, counted.last)})
    if (less < 0 || less > counted.layers)
      throw UsageError(
          format("{} = {} is not between 0 and the {} layers of the model", key, less, counted.layers));
  return counted;
}

void check_number(const ModelSpec& whole, std::size_t blocks, int stages) {
  if (stages > 0 && static_cast<std::size_t>(stages) <= blocks) return;
  throw UsageError(format(
      "{} pipeline stages for {} blocks (embedding, {} layers, head): every stage needs at least one "
      "block; use a smaller parallelism.pipeline_parallel_degree or a schedule with fewer stages per rank",
      stages, blocks, whole.layers));
}

void check_known(const ModelSpec& whole, const std::string& name) {
  if (std::ranges::find(whole.blocks, name, &BlockSpec::name) != whole.blocks.end()) return;
  throw UsageError(
      format("{}: the model has no block \"{}\"; its blocks are \"embedding\", \"layers.0\" to "
             "\"layers.{}\" and \"head\"",
             kBlocks, name, whole.layers - 1));
}

std::vector<int> by_names(const ModelSpec& whole, const StagePlan& plan) {
  std::map<std::string, int> stage_of;
  std::vector<std::string> named;
  for (std::size_t stage = 0; stage < plan.blocks.size(); ++stage) {
    if (plan.blocks[stage].empty()) throw UsageError(format("{}: stage {} has no block", kBlocks, stage));
    for (const std::string& name : plan.blocks[stage]) {
      check_known(whole, name);
      const auto [known, added] = stage_of.emplace(name, static_cast<int>(stage));
      if (!added) {
        throw UsageError(format("{}: \"{}\" is named in stage {} and again in stage {}", kBlocks, name,
                                known->second, stage));
      }
      named.push_back(name);
    }
  }
  std::vector<int> stages;
  for (std::size_t b = 0; b < whole.blocks.size(); ++b) {
    const std::string& name = whole.blocks[b].name;
    const auto found = stage_of.find(name);
    const bool follows = found == stage_of.end() && b >= divisible_blocks(whole);
    if (found == stage_of.end() && !follows)
      throw UsageError(format("{}: \"{}\" is in no stage; every block must be in one", kBlocks, name));
    stages.push_back(follows ? stages.back() : found->second);
  }
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i] == whole.blocks[i].name) continue;
    throw UsageError(
        format("{}: \"{}\" is at the place of \"{}\"; the blocks of all stages must be in the "
               "order of the model",
               kBlocks, named[i], whole.blocks[i].name));
  }
  return stages;
}

std::vector<int> by_layer_count(const ModelSpec& whole, const StagePlan& plan, int stages) {
  const CountedLayers counted = counted_layers(whole, plan);
  const int64_t each = counted.all() / stages;
  const int64_t one_more = stages == 1 ? 0 : counted.all() % stages;  // so many stages have each + 1
  const auto layers_of = [&](int stage) {
    int64_t layers = each + (stage < one_more ? 1 : 0);
    if (stage == 0) layers -= counted.first;
    if (stage == stages - 1) layers -= counted.last;
    return layers;
  };
  // As torchtitan: also where the stage has one more.
  if (stages > 1 && (each < 1 || counted.first > each || counted.last > each)) {
    throw UsageError(format(
        "{} pipeline stages have {} layers each, of {}: {}; use fewer stages, or smaller numbers for the "
        "embedding and the head",
        stages, each, counted.all(), counted.text()));
  }
  std::vector<int> assigned;
  int stage = 0;
  int64_t left = layers_of(0);
  for (std::size_t b = 0; b < divisible_blocks(whole); ++b) {
    const BlockKind kind = whole.blocks[b].kind;
    while (kind == BlockKind::layer && left == 0) left = layers_of(++stage);
    if (kind == BlockKind::layer) --left;
    assigned.push_back(kind == BlockKind::head ? stages - 1 : stage);
  }
  return assigned;
}

/// What a stage with the blocks from `begin` to `end` costs or needs.
using StageAmount = std::function<double(std::size_t stage, std::size_t begin, std::size_t end)>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A cut, and the largest amount of its stages.
struct Cut {
  double largest = kInfinity;
  std::vector<int> stages;  ///< of each block
};

/// Cuts `blocks` into `stages` so that the largest `amount` of a stage is as small as possible, while no stage has
/// more than `limit` of `limited`. Of equally good cuts the first: early stages of a pipeline keep the activations of
/// more micro-batches, so they get less. There must be such a cut.
Cut best_cut(std::size_t blocks, std::size_t stages, const StageAmount& amount, const StageAmount& limited,
             double limit) {
  // The smallest largest amount, and where the last stage begins, by number of stages and of blocks.
  std::vector best(stages + 1, std::vector<double>(blocks + 1, kInfinity));
  std::vector last_begin(stages + 1, std::vector<std::size_t>(blocks + 1, 0));
  best[0][0] = 0;
  for (std::size_t count = 1; count <= stages; ++count) {
    for (std::size_t end = count; end <= blocks; ++end) {
      for (std::size_t begin = count - 1; begin < end; ++begin) {
        if (limited(count - 1, begin, end) > limit) continue;
        const double largest = std::max(best[count - 1][begin], amount(count - 1, begin, end));
        if (largest >= best[count][end]) continue;
        best[count][end] = largest;
        last_begin[count][end] = begin;
      }
    }
  }
  Cut cut{best[stages][blocks], std::vector<int>(blocks)};
  std::size_t end = blocks;
  for (std::size_t count = stages; count > 0; --count) {
    const std::size_t begin = last_begin[count][end];
    std::fill(cut.stages.begin() + static_cast<std::ptrdiff_t>(begin),
              cut.stages.begin() + static_cast<std::ptrdiff_t>(end), static_cast<int>(count) - 1);
    end = begin;
  }
  return cut;
}

/// sums[i] of the first i values.
std::vector<double> sums_of(std::span<const double> values) {
  std::vector<double> sums = {0.0};
  for (const double value : values) sums.push_back(sums.back() + value);
  return sums;
}

/// Of the first `count` blocks; the last of them stands for all that follow.
std::vector<double> joined(std::span<const double> values, std::size_t count) {
  std::vector<double> result(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
  for (const double value : values.subspan(count)) result.back() += value;
  return result;
}

std::vector<int> balanced(std::size_t blocks, std::span<const double> all_costs, int stages,
                          const StageMemory& memory) {
  const auto count = static_cast<std::size_t>(stages);
  const std::vector<double> costs = joined(all_costs, blocks);
  const std::vector<double> cost_sums = sums_of(costs);
  const StageAmount cost = [&](std::size_t, std::size_t begin, std::size_t end) {
    return cost_sums[end] - cost_sums[begin];
  };
  const Cut cheapest = best_cut(costs.size(), count, cost, cost, kInfinity);
  if (memory.state.empty()) return cheapest.stages;
  const std::vector<double> states = sums_of(joined(memory.state, blocks));
  const std::vector<double> activations = sums_of(joined(memory.activations, blocks));
  const StageAmount bytes = [&](std::size_t stage, std::size_t begin, std::size_t end) {
    return states[end] - states[begin] + memory.alive[stage] * (activations[end] - activations[begin]);
  };
  const double cost_limit = cheapest.largest * (1 + kStageCostTolerance);
  const Cut smallest = best_cut(costs.size(), count, bytes, cost, cost_limit);
  return best_cut(costs.size(), count, cost, bytes, smallest.largest).stages;
}

}  // namespace

int planned_stages(const ModelSpec& whole, const StagePlan& plan) {
  int stages = plan.stages;
  const auto agree = [&](int wanted, const std::string& source) {
    if (stages == 0) stages = wanted;
    if (stages == wanted) return;
    throw UsageError(format("{} pipeline stages, but {}; change one of them", stages, source));
  };
  if (!plan.blocks.empty()) {
    const int lists = static_cast<int>(plan.blocks.size());
    agree(lists, format("{} lists the blocks of {}", kBlocks, lists));
  } else if (plan.layers_per_stage > 0) {
    const CountedLayers counted = counted_layers(whole, plan);
    const auto wanted = static_cast<int>((counted.all() + plan.layers_per_stage - 1) / plan.layers_per_stage);
    agree(wanted,
          format("{} = {} makes {} of {}", kLayersPerStage, plan.layers_per_stage, wanted, counted.text()));
  }
  check_number(whole, plan.blocks.empty() ? divisible_blocks(whole) : whole.blocks.size(), stages);
  return stages;
}

std::vector<double> block_flops(const ModelSpec& whole, int64_t seq_len) {
  std::vector<double> flops;
  const CostContext token{.tokens = 1, .document_length = seq_len};
  for (const BlockSpec& block : whole.blocks) {
    const BlockCost cost = block_cost(block, token);
    flops.push_back(cost.forward_flops + cost.backward_flops);
  }
  return flops;
}

std::vector<int> stages_of_blocks(const ModelSpec& whole, const StagePlan& plan,
                                  std::span<const double> costs, const StageMemory& memory) {
  const int stages = planned_stages(whole, plan);
  if (!plan.blocks.empty()) return by_names(whole, plan);
  std::vector<int> chosen = counts_layers(plan) ? by_layer_count(whole, plan, stages)
                                                : balanced(divisible_blocks(whole), costs, stages, memory);
  chosen.resize(whole.blocks.size(), stages - 1);
  return chosen;
}

void set_stages(ModelSpec& model, std::span<const int> stages) {
  const auto count = static_cast<std::size_t>(std::ranges::count_if(model.blocks, &BlockSpec::begins_layer));
  if (stages.size() != count) throw Error(format("{} stages for {} blocks", stages.size(), count));
  std::size_t begun = 0;
  for (BlockSpec& block : model.blocks) {
    if (block.begins_layer()) ++begun;
    block.stage = stages[begun - 1];
  }
}

}  // namespace stepforge
