// SPDX-License-Identifier: Apache-2.0
// What the built-in callbacks (train/callback_kinds.h) share with the rest; the trace, which the program adds.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "stepforge/config/config.h"
#include "stepforge/train/callback.h"

namespace stepforge {

/// sampling.prompt, or, if the run trains on conversations and has a chat template, the text of a conversation in which a user
/// says it and the answer is to follow. Throws what reading the template throws.
std::string sample_prompt(const Config& config);

/// The context length that samples during training need; 0 if sampling is off.
int64_t generation_context(const Config& config);

/// Writes a trace of the third step after the start (or of the last one, if there are fewer) to `path`,
/// measured and predicted, for ui.perfetto.dev, and logs the time of each lane. Rank 0 only.
std::unique_ptr<Callback> make_trace_callback(std::filesystem::path path);

}  // namespace stepforge
