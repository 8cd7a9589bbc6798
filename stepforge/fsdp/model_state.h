// SPDX-License-Identifier: Apache-2.0
// State dicts of modules under fully_shard: parameters and buffers by their names in the module.
#pragma once

#include "stepforge/fsdp/fully_shard.h"
#include "stepforge/fsdp/state_dict.h"

namespace stepforge {

/// get_state_dict() of fsdp/state_dict.h for `module` and the units inside it. Parameters of units are fp32,
/// like their masters; tied ones appear under each of their names.
StateDict get_state_dict(const ShardedModule& module, const GetStateOptions& options = {});

/// load_state_dict() of fsdp/state_dict.h for `module` and the units inside it. Afterwards the loaded
/// parameters and buffers from the meta device have values. Do not call it during the module's forward or
/// backward.
LoadReport load_state_dict(const ShardedModule& module, const StateDict& values,
                           const LoadStateOptions& options = {});

}  // namespace stepforge
