// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/pipeline_stages.h"

#include <algorithm>
#include <cstddef>
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

CountedLayers counted_layers(const ModelSpec& whole, const StagePlan& plan) {
  CountedLayers counted;
  counted.layers = std::ranges::count(whole.blocks, BlockKind::layer, &BlockSpec::kind);
  counted.first = plan.first_stage_less_layers.value_or(counted.first);
  counted.last = plan.last_stage_less_layers.value_or(counted.last);
  for (const auto& [key, less] : {std::pair(kFirstLess, counted.first), std::pair(kLastLess, counted.last)})
    if (less < 0 || less > counted.layers)
      throw UsageError(
          format("{} = {} is not between 0 and the {} layers of the model", key, less, counted.layers));
  return counted;
}

void check_number(const ModelSpec& whole, int stages) {
  const std::size_t blocks = whole.blocks.size();
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
  for (const BlockSpec& block : whole.blocks) {
    const auto found = stage_of.find(block.name);
    if (found == stage_of.end())
      throw UsageError(format("{}: \"{}\" is in no stage; every block must be in one", kBlocks, block.name));
    stages.push_back(found->second);
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
  for (const BlockSpec& block : whole.blocks) {
    while (block.kind == BlockKind::layer && left == 0) left = layers_of(++stage);
    if (block.kind == BlockKind::layer) --left;
    assigned.push_back(block.kind == BlockKind::head ? stages - 1 : stage);
  }
  return assigned;
}

/// Cuts a list of costs into parts so that the largest sum is as small as possible.
class BalancedCuts {
 public:
  explicit BalancedCuts(std::span<const double> costs) : sums_{0.0} {
    for (const double cost : costs) sums_.push_back(sums_.back() + cost);
  }

  /// The part of each element.
  std::vector<int> into(int parts) {
    const std::size_t count = sums_.size() - 1;
    best_.assign(1, std::vector<double>(count + 1, std::numeric_limits<double>::infinity()));
    best_[0][0] = 0.0;
    std::vector<std::vector<std::size_t>> last_begin(1);  // of the last part, by number of parts and elements
    for (int part = 1; part <= parts; ++part) {
      std::vector<double> costs(count + 1, std::numeric_limits<double>::infinity());
      std::vector<std::size_t> begins(count + 1, 0);
      for (auto end = static_cast<std::size_t>(part); end <= count; ++end) {
        begins[end] = begin_of_last(end);
        costs[end] = largest(begins[end], end);
      }
      best_.push_back(std::move(costs));
      last_begin.push_back(std::move(begins));
    }
    std::vector<int> assigned(count);
    std::size_t end = count;
    for (int part = parts; part > 0; --part) {
      const std::size_t begin = last_begin[static_cast<std::size_t>(part)][end];
      std::fill(assigned.begin() + static_cast<std::ptrdiff_t>(begin),
                assigned.begin() + static_cast<std::ptrdiff_t>(end), part - 1);
      end = begin;
    }
    return assigned;
  }

 private:
  /// The largest sum if the last part of the first `end` elements begins at `begin`.
  double largest(std::size_t begin, std::size_t end) const {
    return std::max(best_.back()[begin], sums_[end] - sums_[begin]);
  }

  /// Where the last part of the first `end` elements begins. Of equally good places the first: early stages of
  /// a pipeline keep the activations of more micro-batches, so they get less.
  std::size_t begin_of_last(std::size_t end) const {
    // With a later begin the parts before become more expensive and the last one cheaper: the best place is
    // where these cross.
    std::size_t low = best_.size() - 1;  // each part before has at least one element
    std::size_t high = end - 1;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (best_.back()[middle] >= sums_[end] - sums_[middle])
        high = middle;
      else
        low = middle + 1;
    }
    const bool before = low >= best_.size() && largest(low - 1, end) <= largest(low, end);
    return before ? low - 1 : low;
  }

  std::vector<double> sums_;               ///< of the first i costs
  std::vector<std::vector<double>> best_;  ///< the largest sum, by number of parts and of elements
};

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
  check_number(whole, stages);
  return stages;
}

std::vector<double> block_flops(const ModelSpec& whole, int64_t seq_len) {
  std::vector<double> flops;
  const CostContext token{.tokens = 1, .document_length = seq_len};
  for (const BlockSpec& block : whole.blocks) {
    const BlockCost cost = block_cost(block.regions, token);
    flops.push_back(cost.forward_flops + cost.backward_flops);
  }
  return flops;
}

std::vector<int> stages_of_blocks(const ModelSpec& whole, const StagePlan& plan,
                                  std::span<const double> costs) {
  const int stages = planned_stages(whole, plan);
  if (!plan.blocks.empty()) return by_names(whole, plan);
  if (counts_layers(plan)) return by_layer_count(whole, plan, stages);
  return BalancedCuts(costs).into(stages);
}

void set_stages(ModelSpec& model, std::span<const int> stages) {
  if (stages.size() != model.blocks.size())
    throw Error(format("{} stages for {} blocks", stages.size(), model.blocks.size()));
  for (std::size_t b = 0; b < stages.size(); ++b) model.blocks[b].stage = stages[b];
}

}  // namespace stepforge
