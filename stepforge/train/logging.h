// SPDX-License-Identifier: Apache-2.0
// The built-in callback "logging": the metrics of training and validation, and the status line.
#pragma once

#include <memory>

#include "stepforge/train/callback.h"

namespace stepforge {

std::unique_ptr<Callback> make_logging();

}  // namespace stepforge
