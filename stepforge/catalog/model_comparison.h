// SPDX-License-Identifier: Apache-2.0
// Whether the weights of one model can be used in another.
#pragma once

#include <string>
#include <vector>

#include "stepforge/config/config.h"

namespace stepforge {

/// The fields of [model] that change shapes or computation and differ, one text each, such as
/// "model.rope_theta: 500000.0 there, 10000.0 here". Dropout, the weights of losses of routers and of multi-token
/// prediction, and max_position may differ.
std::vector<std::string> model_differences(const ModelConfig& there, const ModelConfig& here);

}  // namespace stepforge
