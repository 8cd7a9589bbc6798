// SPDX-License-Identifier: Apache-2.0
// Checks that involve several fields or the file system. A check is skipped if it involves a field in
// `refused`, whose value was already reported as wrong.
#pragma once

#include <string>
#include <vector>

#include "stepforge/base/error_list.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/load.h"

namespace stepforge {

/// Refuses combinations of values that no command accepts.
void check_combinations(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors);

/// Refuses data sources and tokenizers that do not exist. With `missing`, errors about fields that the user has not set are
/// added there.
void check_data(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors,
                std::vector<std::string>* missing = nullptr);

/// Checks what training needs beyond check_data; see validate_for_training.
void check_for_training(const LoadedConfig& loaded, const RefusedFields& refused, ErrorList& errors,
                        std::vector<std::string>* missing = nullptr);

}  // namespace stepforge
