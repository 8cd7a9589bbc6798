// SPDX-License-Identifier: Apache-2.0
// How a router chooses the experts of a token (kernels/router.h).
#pragma once

#include <cstdint>

namespace stepforge {

enum class RouterScore : uint8_t { softmax, sigmoid };

/// What a group of experts is judged by: the largest of its scores with correction (DeepSeek-V2), or the sum of the two
/// largest (DeepSeek-V3).
enum class GroupScore : uint8_t { largest, two_largest };

struct RouterOptions {
  RouterScore score = RouterScore::softmax;
  int64_t chosen = 1;         ///< k, experts per token
  int64_t groups = 1;         ///< of as many consecutive experts each
  int64_t chosen_groups = 1;  ///< that a token may take experts of
  GroupScore group_score = GroupScore::two_largest;
  bool normalize = false;
  double epsilon = 0.0;
  double factor = 1.0;  ///< of all weights
};

/// Throws Error unless the options fit `experts`.
void check_router(const RouterOptions& options, int64_t experts);

/// A router, and the weights of its two losses in the loss of a training step.
struct RouterSettings {
  RouterOptions options;
  double balance_weight = 0.0;
  double z_weight = 0.0;

  bool changes_gradients() const { return balance_weight != 0.0 || z_weight != 0.0; }
};

}  // namespace stepforge
