// SPDX-License-Identifier: Apache-2.0
// The commands that need tensors.
#pragma once

#include "stepforge/app/torch_library.h"

namespace stepforge {

// Each returns the exit code and throws Error.
int run_train(const TorchCommand& command);
int run_dry(const TorchCommand& command);
int run_eval(const TorchCommand& command);
int run_generate(const TorchCommand& command);
int run_export(const TorchCommand& command);
int run_import(const TorchCommand& command);

}  // namespace stepforge
