// What devices can do at best, for model FLOPs utilisation.
#pragma once

#include <string_view>

namespace stepforge {

/// Dense bf16 peak in TFLOP/s of a device by its driver's name ("NVIDIA H100 80GB HBM3"), 0 if unknown. The
/// table is torchtitan's; an H100 that says neither NVL nor PCIe is an SXM one.
double peak_tflops_of(std::string_view device_name);

}  // namespace stepforge
