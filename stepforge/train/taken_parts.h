// SPDX-License-Identifier: Apache-2.0
// What adapters take from the weights that a run starts from (checkpoint/initial_adapter.h).
#pragma once

#include <functional>
#include <optional>

#include "stepforge/checkpoint/initial_adapter.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

/// Of a run whose adapters begin now, from the weights of `open`; nothing unless adapter.init = "pissa". They are computed, and
/// written into the run folder. A collective of all ranks, as is the next one.
std::optional<InitialAdapter> new_parts(const Trainer& trainer, const std::function<TensorFolder()>& open);

/// Of a run whose adapters are those of `source`, a checkpoint; nothing if they took nothing. They are read from the run of
/// `source`, and copied into this run if that is another one. `hash`: FrozenWeights::taken of the checkpoint. Throws UsageError if
/// they are missing or others, or if adapter.init is pissa in one of the two runs only.
std::optional<InitialAdapter> continued_parts(const Trainer& trainer, const KnownModel& source,
                                              const std::string& hash);

}  // namespace stepforge
