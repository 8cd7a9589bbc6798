// SPDX-License-Identifier: Apache-2.0
// The built-in callback "best", which follows the validation loss: it keeps the step with the lowest one
// (checkpoint.keep_best) and ends a run that gains no more (training.early_stopping).
#pragma once

#include <memory>

#include "stepforge/config/config.h"
#include "stepforge/train/callback.h"

namespace stepforge {

/// Null if the configuration asks for neither. The loss of a validation is the same on all ranks, and so is what the callback
/// decides. Its state is in checkpoints, so a resumed run decides as one that was not interrupted.
std::unique_ptr<Callback> make_best_step(const Config& config);

}  // namespace stepforge
