// SPDX-License-Identifier: Apache-2.0
// Whether weights made for one model mean the same in another.
#pragma once

#include <string>
#include <vector>

#include "stepforge/config/config.h"

namespace stepforge {

/// The fields of [model] in which the models have other shapes or compute otherwise, one text each:
/// "model.rope_theta: 500000.0 there, 10000.0 here". Dropout and the longest context may differ freely.
std::vector<std::string> model_differences(const ModelConfig& there, const ModelConfig& here);

}  // namespace stepforge
