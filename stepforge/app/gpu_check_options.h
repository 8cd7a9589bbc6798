// SPDX-License-Identifier: Apache-2.0
// The options of `stepforge gpu-check` (docs/devices.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "stepforge/config/config.h"

namespace stepforge {

/// What is checked: a GPU; or, with small sizes, what stands in for one in tests.
enum class CheckedDevice : uint8_t { cuda, sim, cpu };
constexpr ChoiceNames<3> choice_names(CheckedDevice) {
  return {"cuda", "sim", "cpu"};
}

struct GpuCheckOptions {
  CheckedDevice device = CheckedDevice::cuda;
  std::filesystem::path output = "gpu-check";  ///< folder for the report; an earlier one there is replaced
  std::vector<std::string> only;               ///< stages to run; empty: all
  bool list = false;                           ///< only print the list of stages
  std::filesystem::path peer;                  ///< script of the same models in PyTorch; empty: none
};

}  // namespace stepforge
