// How a trainer is put together: one function per part, in order.
#pragma once

#include <vector>

#include "stepforge/train/trainer.h"

namespace stepforge {

/// See Trainer::replace_build_step for the names.
std::vector<Trainer::BuildStep> standard_build_steps();

}  // namespace stepforge
