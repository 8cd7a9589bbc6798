// SPDX-License-Identifier: Apache-2.0
// Functions of the built-in callbacks (train/callback_kinds.h) that others use; the trace callback, which the program adds.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "stepforge/config/config.h"
#include "stepforge/train/callback.h"

namespace stepforge {

/// sampling.prompt, or, if the run trains on conversations and has a chat template, the text of a conversation with this
/// message of a user, up to the answer. Throws what reading the template throws.
std::string sample_prompt(const Config& config);

/// The context length that samples during training need; 0 if sampling is off.
int64_t generation_context(const Config& config);

/// Writes a trace of the third step after the start (or of the last one, if there are fewer) to `path`,
/// measured and predicted, for ui.perfetto.dev, and logs the time of each lane. Rank 0 only.
std::unique_ptr<Callback> make_trace_callback(std::filesystem::path path);

}  // namespace stepforge
