// SPDX-License-Identifier: Apache-2.0
// The commands that need tensors.
#pragma once

#include "stepforge/app/torch_library.h"

namespace stepforge {

// Each returns the exit code of the process, and throws Error if the command fails.
int run(const TrainOptions& options, const CommandContext& context);
int run(const ProveOptions& options, const CommandContext& context);
int run(const EvalOptions& options, const CommandContext& context);
int run(const GenerateOptions& options, const CommandContext& context);
int run(const ChatOptions& options, const CommandContext& context);
int run(const ExportOptions& options, const CommandContext& context);
int run(const ImportOptions& options, const CommandContext& context);
int run(const GpuCheckOptions& options, const CommandContext& context);

/// `stepforge train --dry-run N`.
int run_dry(const TrainOptions& options, const CommandContext& context);

}  // namespace stepforge
