// SPDX-License-Identifier: Apache-2.0
// The built-in callbacks: start-up report, log and status line, samples, export, trace.
#pragma once

#include <filesystem>
#include <memory>

#include "stepforge/config/config.h"
#include "stepforge/train/callback.h"

namespace stepforge {

/// Adds the callbacks of every run: report and log, then samples and export if they are configured.
void add_builtin_callbacks(Trainer& trainer);

/// The context length that samples during training need; 0 if sampling is off.
int64_t generation_context(const Config& config);

/// Writes a trace of the third step after the start (or of the last one, if there are fewer) to `path`,
/// measured and predicted, for ui.perfetto.dev, and logs the time of each lane. Rank 0 only.
std::unique_ptr<Callback> make_trace_callback(std::filesystem::path path);

}  // namespace stepforge
