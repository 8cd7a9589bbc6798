// SPDX-License-Identifier: Apache-2.0
// Rules among several fields.
#pragma once

#include "stepforge/config/load.h"
#include "stepforge/config/problems.h"

namespace stepforge {

/// Combinations that make no sense for any use. Adds to `problems`; fields marked bad there are not judged.
void check_combinations(const LoadedConfig& loaded, Problems& problems);

/// Data sources and tokenizer that exist.
void check_data(const LoadedConfig& loaded, Problems& problems);

/// What training needs beyond that; see validate_for_training.
void check_for_training(const LoadedConfig& loaded, Problems& problems);

}  // namespace stepforge
