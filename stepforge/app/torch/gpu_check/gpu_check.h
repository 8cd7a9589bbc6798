// SPDX-License-Identifier: Apache-2.0
// `stepforge gpu-check`: everything that should be seen once on a GPU, by one command (docs/devices.md).
#pragma once

#include <filesystem>
#include <string>

#include "stepforge/app/gpu_check_options.h"
#include "stepforge/app/torch/gpu_check/stage.h"

namespace stepforge::gpu_check {

/// What the stages get. `scratch`: a folder that the caller deletes. Throws UsageError with the reason if there is no such device.
Check make_check(const GpuCheckOptions& options, const std::filesystem::path& program,
                 const std::filesystem::path& scratch);

}  // namespace stepforge::gpu_check
