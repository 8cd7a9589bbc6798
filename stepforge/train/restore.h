// SPDX-License-Identifier: Apache-2.0
// Loading a checkpoint into a trainer, as checkpoint.load and checkpoint.strict say.
#pragma once

#include <filesystem>
#include <functional>

#include "stepforge/checkpoint/native.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

/// Calls `load` with null, so that every difference between the files at `source` and the model is an error, or without
/// checkpoint.strict with a place for differences, which are then logged.
void load_weights_as_asked(const Trainer& trainer, const std::filesystem::path& source,
                           const std::function<void(TensorDifferences* accepted)>& load);

/// Restores weights, and optimizer, schedule, data and counters as far as checkpoint.load asks for them; logs how the
/// configuration differs. `own`: it is a checkpoint of this run. Throws UsageError if it is of another run, or cannot be
/// continued as asked.
void restore_checkpoint(Trainer& trainer, const FoundCheckpoint& found, bool own);

}  // namespace stepforge
