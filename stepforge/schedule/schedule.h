// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule: what each rank of a pipeline computes, in order. Plain data: generators and CSV files write
// it, step/lowering turns it into operations.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace stepforge {

/// What a stage does with a micro-batch. PyTorch's names of actions are F, B, I, W; L is ours.
enum class ActionKind : uint8_t {
  forward,          ///< F
  backward,         ///< B: gradients of the input and of the weights
  backward_input,   ///< I: the gradient of the input only; the products for weights are queued
  backward_weight,  ///< W: the queued gradients of the weights
  loss,             ///< L: loss of the last stage; if a schedule does not list it, it follows the forward
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int micro_batch = 0;

  auto operator<=>(const Action&) const = default;
};

struct Schedule {
  int micro_batches = 1;
  std::vector<int> rank_of_stage;            ///< the pipeline rank that has each stage, in forward order
  std::vector<std::vector<Action>> actions;  ///< of each pipeline rank, in order

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int ranks() const { return static_cast<int>(actions.size()); }
};

}  // namespace stepforge
