// SPDX-License-Identifier: Apache-2.0
// Small tables of the host for a device.
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// A copy of `host`, of any shape and type, on `device`, from page-locked memory: the host does not wait for it. `host` itself if the
/// device is the CPU.
at::Tensor copy_to_device(const at::Tensor& host, c10::Device device);

}  // namespace stepforge
