// SPDX-License-Identifier: Apache-2.0
// Checks that involve several fields or the file system. Fields in `refused` are skipped.
#pragma once

#include "stepforge/base/error_list.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/load.h"

namespace stepforge {

/// Combinations of values that are wrong for every use.
void check_combinations(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors);

/// That data sources and the tokenizer exist.
void check_data(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors);

/// What training needs beyond check_data; see validate_for_training.
void check_for_training(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors);

}  // namespace stepforge
