// SPDX-License-Identifier: Apache-2.0
// Our own callbacks: start-up report, log and status line, samples, export, trace.
#pragma once

#include <filesystem>
#include <memory>

#include "stepforge/config/config.h"
#include "stepforge/train/callback.h"

namespace stepforge {

/// Adds those that every run has: report and log, then samples and export if the configuration asks for them.
void add_builtin_callbacks(Trainer& trainer);

/// Positions that samples written during training may reach; 0 if none are asked for.
int64_t generation_context(const Config& config);

/// Writes the third step of this start (or its last, if it has fewer) to `path`, as it ran and as predicted,
/// for ui.perfetto.dev, and logs where the time went. Rank 0 only.
std::unique_ptr<Callback> make_trace_callback(std::filesystem::path path);

}  // namespace stepforge
