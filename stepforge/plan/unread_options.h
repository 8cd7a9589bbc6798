// SPDX-License-Identifier: Apache-2.0
// Options that have no effect, because the optimizer, the learning-rate schedule, the rotary type or the layout of the run
// does not read them.
#pragma once

#include "stepforge/config/load.h"

namespace stepforge {

/// Throws UsageError that lists the options of [optimizer], [lr_scheduler], [model.rope_scaling] and [parallelism] that the
/// user has set (LoadedConfig::chosen), differ from the default, and are not read.
void refuse_unread_options(const LoadedConfig& loaded);

}  // namespace stepforge
