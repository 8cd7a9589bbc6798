// SPDX-License-Identifier: Apache-2.0
// The loss of exact models (exact_entries.h). Not public.
#pragma once

#include "stepforge/nn/call_entries.h"

namespace stepforge {

const CallEntry& exact_loss_entry();

}  // namespace stepforge
