// SPDX-License-Identifier: Apache-2.0
// The cut of a model into pipeline stages: which blocks each stage has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// How to cut. Names of options in messages are those of [parallelism].
struct StagePlan {
  int stages = 0;  ///< their number; 0: what layers_per_stage or `blocks` give
  /// Each of these three asks for torchtitan's rule instead of balanced costs: the embedding counts as
  /// first_stage_less_layers layers, the head as last_stage_less_layers (1 by default), and all stages have
  /// equally many, the first ones one more if they do not divide evenly.
  int64_t layers_per_stage = 0;  ///< 0: as many as the number of stages leaves
  std::optional<int64_t> first_stage_less_layers = {};
  std::optional<int64_t> last_stage_less_layers = {};
  /// The names of the blocks of each stage, all in the order of the model. Instead of any rule.
  std::vector<std::vector<std::string>> blocks = {};
};

/// The number of stages that `plan` asks for: plan.stages, the number of lists in plan.blocks, or that of
/// stages of layers_per_stage layers. Throws UsageError if these differ, or the plan gives none.
int planned_stages(const ModelSpec& whole, const StagePlan& plan);

/// The FLOPs of forward and backward per token of each block, with rows of `seq_len` tokens. Recomputation is
/// not counted.
std::vector<double> block_flops(const ModelSpec& whole, int64_t seq_len);

/// What a rank needs memory for, in bytes of each block or in any unit, and the micro-batches whose activations each
/// stage keeps at once.
struct StageMemory {
  std::vector<double> state;        ///< weights, gradients and optimizer of a block
  std::vector<double> activations;  ///< of a block, for one micro-batch
  std::vector<int> alive;           ///< of each stage, by the schedule
};

/// How much more than necessary the most expensive stage may cost if the largest stage then needs less memory.
inline constexpr double kStageCostTolerance = 0.02;

/// The stage of each block of a whole model. Without another rule, the most expensive stage is as cheap as
/// possible, by `costs` of each block (block_flops()), or up to kStageCostTolerance more expensive where that makes the
/// memory of the stage that needs most smaller; an empty `memory` does not count. Every stage has at least one
/// block, the first one the embedding and the last one the head. All ranks must pass the same costs, those of
/// the undivided model. Throws UsageError as planned_stages() does, if there are more stages than blocks, if a
/// stage of torchtitan's rule would have less than no layer, or if plan.blocks are not all blocks in order.
std::vector<int> stages_of_blocks(const ModelSpec& whole, const StagePlan& plan,
                                  std::span<const double> costs, const StageMemory& memory = {});

/// Sets BlockSpec::stage of each block. `model` has all blocks; those into which a layer is cut count as one.
void set_stages(ModelSpec& model, std::span<const int> stages);

}  // namespace stepforge
