// SPDX-License-Identifier: Apache-2.0
// What libtorch needs to know of the simulated devices: memory, streams and events, under its device type PrivateUse1 with the
// name "sim".
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace stepforge::sim {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// Gives libtorch the devices. Idempotent.
void register_devices();

/// Device memory for the current stream of the current device.
c10::Allocator& device_allocator();
/// The current stream of this thread on a device, as the machine counts streams.
int current_stream(c10::DeviceIndex device);
/// That stream, for libtorch.
c10::Stream stream_of(int number, c10::DeviceIndex device);

}  // namespace stepforge::sim
