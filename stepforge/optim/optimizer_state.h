// SPDX-License-Identifier: Apache-2.0
// State dicts of optimizers for modules under fully_shard.
#pragma once

#include "stepforge/fsdp/state_dict.h"
#include "stepforge/optim/sharded_adamw.h"

namespace stepforge {

/// get_state_dict() of fsdp/state_dict.h for an optimizer: "state.<parameter>.exp_avg",
/// "state.<parameter>.exp_avg_sq" and "state.<parameter>.step", an integer; zero before the first step.
/// Moments are sharded like the parameters.
StateDict get_optimizer_state_dict(ShardedAdamW& optimizer, const GetStateOptions& options = {});

/// load_state_dict() of fsdp/state_dict.h for an optimizer, from any layout. Throws UsageError with `assign`:
/// the state is in the optimizer's own buffers.
LoadReport load_optimizer_state_dict(ShardedAdamW& optimizer, const StateDict& values,
                                     const LoadStateOptions& options = {});

}  // namespace stepforge
