// SPDX-License-Identifier: Apache-2.0
// Whether the keys of [model] fit together and the family, whatever the layout.
#pragma once

#include "stepforge/config/config.h"

namespace stepforge {

/// Throws UsageError that names the key and the remedy: for sizes that are not positive or whose products could overflow,
/// settings that the family does not have or that must be set, experts, latents and rotary factors that do not fit.
void check_model(const ModelConfig& model);

}  // namespace stepforge
