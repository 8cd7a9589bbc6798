// SPDX-License-Identifier: Apache-2.0
// Cheap checks while several ranks train, for what the proof of their programs cannot see: a wrong kernel, a
// transport or memory that changes bits.
#pragma once

#include <memory>

#include "stepforge/train/callback.h"

namespace stepforge {

/// Throws Error, which ends the job,
/// - if the gradient norm of the first step that updates differs from the norm of all ranks' shards, added
///   over the world;
/// - if ranks that hold copies of the same weights differ in a bit, every debug.check_copies_freq steps.
/// Does nothing in a job of one rank.
std::unique_ptr<Callback> make_alarms();

}  // namespace stepforge
