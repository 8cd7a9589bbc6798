// The callbacks every run has: start-up report, logging with the status line, validation log, samples.
#pragma once

#include <filesystem>
#include <memory>

#include "stepforge/config/config.h"
#include "stepforge/train/callback.h"

namespace stepforge {

/// Adds them in the order report, logging, sampling.
void add_builtin_callbacks(Trainer& trainer);

/// Positions that samples written during training may reach; 0 if none are asked for.
int64_t generation_context(const Config& config);

/// Writes the third step of this start (or its last, if it has fewer) to `path`: what really ran beside what
/// was predicted, for ui.perfetto.dev, and says in the log where the time went. Rank 0 only.
std::unique_ptr<Callback> make_trace_callback(std::filesystem::path path);

}  // namespace stepforge
