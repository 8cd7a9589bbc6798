// State dicts of modules under fully_shard: parameters, wherever they lie, and buffers, by their names in the
// module.
#pragma once

#include "stepforge/fsdp/fully_shard.h"
#include "stepforge/fsdp/state_dict.h"

namespace stepforge {

/// get_state_dict() of parallel/state_dict.h for what `module` and the units inside it hold. Parameters of
/// units are fp32, as their masters are; tied ones appear under each of their names.
StateDict get_state_dict(const ShardedModule& module, const GetStateOptions& options = {});

/// load_state_dict() of parallel/state_dict.h into `module` and the units inside it. Parameters and buffers
/// from the meta device have their values then. Not inside of the module's forward or backward.
LoadReport load_state_dict(const ShardedModule& module, const StateDict& values,
                           const LoadStateOptions& options = {});

}  // namespace stepforge
