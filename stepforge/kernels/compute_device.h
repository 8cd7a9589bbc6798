// SPDX-License-Identifier: Apache-2.0
// The device on which a rank computes: the CPU, or one that a plug-in provides (docs/devices.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "stepforge/kernels/cpu_allocator.h"

namespace stepforge {

class DeviceEngine;  // comm/device_engine.h

/// A function of the host in a stream, and the memory that it uses. It must not throw. It may be dropped without having run if
/// the device fails.
struct HostCall {
  std::string name;
  std::vector<std::span<std::byte>> reads;
  std::vector<std::span<std::byte>> writes;
  std::function<void()> run;
};

/// What the program needs of a device beside libtorch's streams and events. Thread-safe.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  /// Of this rank's tensors on the device.
  virtual MemoryStats memory() const = 0;
  /// Sets the peak of memory() to the bytes live now.
  virtual void reset_peak() = 0;
  /// Call it once per training step: may return blocks that steps do not need.
  virtual void trim() = 0;

  /// How often the host has waited for the device so far: what a step must not do. Some devices count from the first call on,
  /// and only waits of the thread that made it. nullopt: this device does not count.
  virtual std::optional<int64_t> host_waits() { return std::nullopt; }

  /// Names what this thread gives the device next, in profilers and messages.
  virtual void mark(const std::string& what) {}

  /// A stream of `device`, which is not the CPU, that nothing else uses: what blocks in it holds up nobody. It lives at least as long
  /// as this object.
  virtual c10::Stream new_stream(c10::Device device);

  /// Whether `address` is in memory of such devices.
  virtual bool owns(const void* address) const { return false; }
  /// Enqueues a call of the host on this thread's current stream. It may block, and must not hold up other streams. `reads` and
  /// `writes` are the pinned memory that it uses; it gets it at in_host_call(address).
  // NOLINTNEXTLINE(performance-unnecessary-value-param): other devices keep it
  virtual void enqueue_host_call(HostCall call) { call.run(); }
  virtual std::byte* in_host_call(std::byte* pinned) const { return pinned; }

  /// Its own engine for collectives on its memory (comm.backend = nccl), whose calls have a deadline of `seconds`; null if it has none.
  virtual std::shared_ptr<DeviceEngine> engine(double seconds) { return nullptr; }
};

struct KernelTable;

struct ComputeDevice {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::shared_ptr<DeviceBackend> backend;
  /// Sets KernelRow::device of the operations that the device has kernels for; null: of none.
  void (*add_kernels)(KernelTable& table) = nullptr;
  /// For groups of ranks; null: engines for host memory serve the device (storage/staged_communicator.h).
  std::shared_ptr<DeviceEngine> engine = nullptr;
  std::string note = {};  ///< why it is not what `auto` may have meant; "" if there is nothing to say
};

/// What a plug-in libstepforge_<kind>.so exports under kDevicePluginEntry.
struct DevicePlugin {
  int devices = 0;
  std::string why_none;                        ///< if there are no devices
  ComputeDevice (*open)(int index) = nullptr;  ///< index < devices
};
using DevicePluginEntry = DevicePlugin (*)();
inline constexpr const char* kDevicePluginEntry = "stepforge_device_plugin";

ComputeDevice cpu_device();

/// The device of training.device: `cpu`, the kind of a plug-in (`cuda`, in builds with tests `sim`) with or without `:index`, or
/// `auto`, a GPU if there is one and otherwise the CPU. Without an index, ranks of a host get its devices in turn by
/// `rank_on_host`. Throws UsageError with the reason if there is no such device.
ComputeDevice compute_device(const std::string& name, int rank_on_host);

/// Lets groups of ranks use the device's own engine, for comm.backend = nccl. `setting` is training.device, for the message. Throws
/// UsageError if it has none.
void use_device_engine(ComputeDevice& device, const std::string& setting, double seconds);

}  // namespace stepforge
