// SPDX-License-Identifier: Apache-2.0
// Order between streams of a device other than the CPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stepforge {

/// This thread's current stream of `device`.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// What `second` gets from now on runs after what `first` has.
inline void put_after(const c10::Stream& first, const c10::Stream& second) {
  c10::Event end(first.device_type());
  end.record(first);
  end.block(second);
}

}  // namespace stepforge
