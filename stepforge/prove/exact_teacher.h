// SPDX-License-Identifier: Apache-2.0
// A teacher whose targets are small integers.
#pragma once

#include <cstdint>

#include "stepforge/train/trainer.h"

namespace stepforge {

inline constexpr int64_t kExactTargets = 3;  ///< the most for each label

/// In place of the build step "teacher": of each label distillation.top_k tokens, and 1, 2 or 3 instead of log-probabilities. There is
/// no model that predicts them. Throws Error if the file cannot be written.
void build_exact_teacher(Trainer& trainer);

}  // namespace stepforge
