// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/compute_device.h"

#include <filesystem>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include "stepforge/base/device_name.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"
#include "stepforge/base/machine.h"

namespace stepforge {

c10::Stream DeviceBackend::new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

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
  std::string failure;
  void* handle = load_device_library(kind, failure);
  void* symbol = handle != nullptr ? dlsym(handle, kDevicePluginEntry) : nullptr;
  if (symbol == nullptr)
    throw UsageError(format("training.device = {}: cannot load its plug-in: {}{}", kind,
                            handle != nullptr ? dlerror() : failure,
                            kind == "cuda" ? format("; {}", kCudaLibrariesRemedy) : ""));
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
  const std::optional<DeviceName> parsed = parse_device_name(name);
  if (!parsed) throw UsageError(format("device \"{}\": {}", name, kDeviceNames));
  const DevicePlugin plugin = load(parsed->kind);
  if (plugin.devices == 0) throw UsageError(format("training.device = {}: {}", name, plugin.why_none));
  if (!parsed->index) return plugin.open(rank_on_host % plugin.devices);
  if (*parsed->index >= plugin.devices)
    throw UsageError(format("training.device = {}: there are {} devices: choose 0 to {}", name,
                            plugin.devices, plugin.devices - 1));
  return plugin.open(*parsed->index);
}

void use_device_engine(ComputeDevice& device, const std::string& setting, double seconds) {
  if (device.device.is_cpu()) {
    throw UsageError(format(
        "comm.backend = nccl carries traffic between GPUs, but training.device = {} computes on the CPU here{}; set "
        "training.device to cuda, or comm.backend to auto or gloo",
        setting, device.note.empty() ? "" : format(" ({})", device.note)));
  }
  device.engine = device.backend->engine(seconds);
  if (device.engine == nullptr) {
    throw UsageError(format(
        "comm.backend = nccl: the plug-in of training.device = {} has no NCCL{}; set comm.backend to auto or gloo",
        setting, device.device.is_cuda() ? ", because nccl.h was missing when it was built" : ""));
  }
}

}  // namespace stepforge
