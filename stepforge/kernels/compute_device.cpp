// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/compute_device.h"

#include <filesystem>

#include <dlfcn.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"
#include "stepforge/base/machine.h"

namespace stepforge {

namespace {

class CpuBackend : public DeviceBackend {
 public:
  MemoryStats memory() const override { return cpu_memory(); }
  void reset_peak() override { reset_cpu_peak(); }
  void trim() override { trim_cpu_memory(); }
};

DevicePlugin load(const std::string& kind) {
  const std::filesystem::path library = device_library(kind);
  if (!std::filesystem::exists(library))
    throw UsageError(format("training.device = {}: this build has no plug-in {}; set it to \"cpu\"{}", kind,
                            library.string(), kind == "cuda" ? ", or build it with `make cuda`" : ""));
  // Lazily, so that it loads where libraries are missing that it needs for some calls only.
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  void* symbol = handle != nullptr ? dlsym(handle, kDevicePluginEntry) : nullptr;
  if (symbol == nullptr)
    throw UsageError(format("training.device = {}: cannot load its plug-in: {}", kind, dlerror()));
  return reinterpret_cast<DevicePluginEntry>(symbol)();
}

/// A plug-in whose libraries are missing counts as none.
ComputeDevice gpu_or_cpu(int rank_on_host) {
  if (!has_gpu_driver() || !std::filesystem::exists(device_library("cuda"))) return cpu_device();
  try {
    const DevicePlugin plugin = load("cuda");
    return plugin.devices == 0 ? cpu_device() : plugin.open(rank_on_host % plugin.devices);
  } catch (const UsageError& failure) {
    ComputeDevice cpu = cpu_device();
    cpu.note = format("training.device = auto computes on the CPU, since the plug-in for GPUs fails: {}",
                      failure.what());
    return cpu;
  }
}

}  // namespace

ComputeDevice cpu_device() {
  return {.device = c10::Device(c10::DeviceType::CPU),
          .backend = std::make_shared<CpuBackend>(),
          .add_kernels = nullptr};
}

ComputeDevice compute_device(const std::string& name, int rank_on_host) {
  if (name == "cpu") return cpu_device();
  if (name == "auto") return gpu_or_cpu(rank_on_host);
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  const DevicePlugin plugin = load(kind);
  if (plugin.devices == 0) throw UsageError(format("training.device = {}: {}", name, plugin.why_none));
  if (colon == std::string::npos) return plugin.open(rank_on_host % plugin.devices);
  const int index = std::stoi(name.substr(colon + 1));  // digits, by the schema of the configuration
  if (index >= plugin.devices)
    throw UsageError(format("training.device = {}: there are {} devices: choose 0 to {}", name,
                            plugin.devices, plugin.devices - 1));
  return plugin.open(index);
}

}  // namespace stepforge
