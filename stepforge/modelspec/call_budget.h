// SPDX-License-Identifier: Apache-2.0
// What backward of a block makes again instead of keeping it: calls by name or kind, or chosen for a limit of memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The names of activation_checkpoint.regions that a block knows. None of a block of your own, which is only recomputed as a
/// whole.
std::vector<std::string> region_names(const BlockSpec& block);

/// The names of activation_checkpoint.calls that a block knows: kinds of its calls ("swiglu") and calls ("mlp.swiglu"). None
/// of a block of your own.
std::vector<std::string> call_names(const BlockSpec& block);

/// The calls ("mlp.swiglu") that these names mean in a block. What leaves the block is never made again.
std::vector<std::string> calls_named(const BlockSpec& block, std::span<const std::string> names);

/// A way to run the backward pass of a block.
struct RecomputationChoice {
  std::vector<std::string> recomputed;  ///< calls, for block_cost()
  int64_t saved_bytes = 0;              ///< BlockCost::saved_bytes
  double work = 0;                      ///< call_work() of what backward makes again
};

/// What it takes to run a call once more: its FLOPs, and the bytes that it moves and sends as FLOPs that take as long.
double call_work(const CallInfo& info, const CostContext& context);

/// All ways of which none keeps as little for less work: first that which keeps everything, last that which keeps least. All
/// sets of kept values are considered; a block of your own keeps everything. Equal for equal blocks and contexts.
std::vector<RecomputationChoice> recomputation_choices(const BlockSpec& block, const CostContext& context);

/// The choice with the least work that keeps at most `budget`, from 0 to 1, of what can be saved beyond the last choice: 1
/// keeps everything, 0 recomputes whatever saves memory. So torchtitan's memory_budget counts.
RecomputationChoice recomputation_within(const BlockSpec& block, const CostContext& context, double budget);

}  // namespace stepforge
