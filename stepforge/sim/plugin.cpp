// SPDX-License-Identifier: Apache-2.0
// The plug-in libstepforge_sim.so: training.device = sim.
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/kernels/compute_device.h"
#include "stepforge/sim/block_cache.h"
#include "stepforge/sim/guard.h"
#include "stepforge/sim/machine.h"

namespace stepforge::sim {

namespace {

std::vector<Range> ranges_of(std::span<const std::span<std::byte>> spans) {
  std::vector<Range> ranges;
  for (const std::span<std::byte> bytes : spans)
    ranges.push_back({bytes.data(), static_cast<int64_t>(bytes.size())});
  return ranges;
}

class SimBackend : public DeviceBackend {
 public:
  explicit SimBackend(int device) : device_(device) {}
  ~SimBackend() override {
    for (const int stream : streams_) Machine::get().give_back(stream);
  }

  MemoryStats memory() const override {
    const BlockStats stats = BlockCache::get().stats(device_);
    return {.live_bytes = stats.live_bytes,
            .peak_bytes = stats.peak_bytes,
            .reserved_bytes = stats.reserved_bytes,
            .system_blocks = stats.system_blocks};
  }
  void reset_peak() override { BlockCache::get().reset_peak(device_); }
  void trim() override {}
  std::optional<int64_t> host_waits() override { return Machine::get().counts(device_).host_waits; }
  c10::Stream new_stream(c10::Device device) override {
    const int stream = Machine::get().take_stream(device_);
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
    return stream_of(stream, device.index());
  }
  void mark(const std::string& what) override { Machine::mark(what); }
  bool owns(const void* address) const override { return Machine::get().is_device_memory(address); }
  void enqueue_host_call(HostCall call) override {
    Machine::get().enqueue(current_stream(static_cast<c10::DeviceIndex>(device_)),
                           {.name = std::move(call.name),
                            .reads = ranges_of(call.reads),
                            .writes = ranges_of(call.writes),
                            .run = std::move(call.run)});
  }
  std::byte* in_host_call(std::byte* pinned) const override { return Machine::get().for_streams(pinned); }

 private:
  int device_;
  std::mutex mutex_;
  std::vector<int> streams_;
};

ComputeDevice open(int index) {
  return {.device = c10::Device(kType, static_cast<c10::DeviceIndex>(index)),
          .backend = std::make_shared<SimBackend>(index),
          .add_kernels = nullptr};
}

}  // namespace

extern "C" DevicePlugin stepforge_device_plugin() {
  register_devices();
  return {.devices = kDevices, .why_none = "", .open = open};
}

}  // namespace stepforge::sim
