// SPDX-License-Identifier: Apache-2.0
// The names of devices on which a rank can compute, as in training.device (docs/devices.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

struct DeviceName {
  std::string kind;          ///< auto, cpu, cuda or sim
  std::optional<int> index;  ///< of devices of this kind on the host
};

/// Of "auto", "cpu", or a kind of device with or without a number, such as "cuda:1". nullopt: it is none of them.
std::optional<DeviceName> parse_device_name(std::string_view name);

inline constexpr const char* kDeviceNames =
    "it is not a device: use auto, cpu, cuda or a GPU with its number, such as cuda:1";

}  // namespace stepforge
