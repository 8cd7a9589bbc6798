// The callbacks every run has: start-up report, logging with the status line, validation log, samples.
#pragma once

#include "config/config.h"

namespace stepforge {

class Trainer;

/// Adds them in the order report, logging, sampling.
void add_builtin_callbacks(Trainer& trainer);

/// Positions that samples written during training may reach; 0 if none are asked for.
int64_t generation_context(const Config& config);

}  // namespace stepforge
