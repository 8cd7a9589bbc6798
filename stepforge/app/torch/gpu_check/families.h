// SPDX-License-Identifier: Apache-2.0
// A small model of each family, with the settings that only some families have.
#pragma once

#include "stepforge/app/torch/gpu_check/trained.h"
#include "stepforge/catalog/families.h"

namespace stepforge::gpu_check {

/// Overrides after those of small_model().
Strings family_options(const ModelFamily& family);

}  // namespace stepforge::gpu_check
