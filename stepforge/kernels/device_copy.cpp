// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/device_copy.h"

#include <ATen/ops/empty.h>

namespace stepforge {

at::Tensor copy_to_device(const at::Tensor& host, c10::Device device) {
  if (device.is_cpu()) return host;
  const at::Tensor pinned = at::empty(host.sizes(), host.options().pinned_memory(true));
  pinned.copy_(host);
  return pinned.to(device, /*non_blocking=*/true);
}

}  // namespace stepforge
