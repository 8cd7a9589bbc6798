// SPDX-License-Identifier: Apache-2.0
#include "stepforge/sim/guard.h"

#include <array>
#include <cstring>
#include <utility>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "stepforge/sim/block_cache.h"
#include "stepforge/sim/machine.h"

namespace stepforge::sim {

c10::Stream stream_of(int number, c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), number == device ? 0 : number);
}

namespace {

/// What libtorch keeps for each thread.
struct ThreadState {
  c10::DeviceIndex device = 0;
  std::array<int, kDevices> streams = [] {
    std::array<int, kDevices> defaults{};
    for (int device = 0; device < kDevices; ++device) defaults[static_cast<size_t>(device)] = device;
    return defaults;
  }();
};

ThreadState& of_thread() {
  thread_local ThreadState state;
  return state;
}

int number_of(const c10::Stream& stream) {
  // libtorch gives the default stream of every device the number 0.
  return stream.id() == 0 ? stream.device_index() : static_cast<int>(stream.id());
}

void free_block(void* block) {
  BlockCache::get().free(static_cast<Block*>(block));
}

class DeviceAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = of_thread().device;
    if (bytes == 0) return {nullptr, c10::Device(kType, device)};
    Block* const block = BlockCache::get().allocate(current_stream(device), static_cast<int64_t>(bytes));
    return {const_cast<std::byte*>(block->range.begin), block, free_block, c10::Device(kType, device)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const Range read{static_cast<const std::byte*>(from), static_cast<int64_t>(bytes)};
    const Range written{static_cast<const std::byte*>(to), static_cast<int64_t>(bytes)};
    Machine& machine = Machine::get();
    machine.enqueue(current_stream(of_thread().device),
                    {"copy of a storage", {read}, {written}, [&machine, to, from, bytes] {
                       std::memcpy(machine.for_streams(to), machine.for_streams(from), bytes);
                     }});
  }
};

class PinnedAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    const Range pages = Machine::get().take_pinned_block(static_cast<int64_t>(bytes));
    auto* begin = const_cast<std::byte*>(pages.begin);
    return {begin, begin, [](void* block) { Machine::get().give_back_pinned_block(block); },
            c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

c10::Allocator& pinned_allocator() {
  static auto* const allocator = new PinnedAllocator();
  return *allocator;
}

class Hooks : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return of_thread().device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { of_thread().device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(of_thread().device, device);
  }
  bool isPinnedPtr(const void* address) const override { return Machine::get().is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(of_thread().device, device.index())};
  }
  c10::Device getDevice() const override { return {kType, of_thread().device}; }
  void setDevice(c10::Device device) const override { of_thread().device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { of_thread().device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(current_stream(device.index()), device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device.index(), device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(Machine::get().stream_from_pool(device.index()), device.index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    int& current = of_thread().streams.at(static_cast<size_t>(stream.device_index()));
    return stream_of(std::exchange(current, number_of(stream)), stream.device_index());
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    *static_cast<Event*>(*event) = Machine::get().record(number_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Machine::get().wait_for(number_of(stream), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || Machine::get().happened(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Machine::get().synchronize(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  bool queryStream(const c10::Stream& stream) const override {
    return Machine::get().happened(Machine::get().record(number_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Machine::get().synchronize_stream(number_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Machine::get().synchronize_device(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get_deleter() == free_block)
      BlockCache::get().record(static_cast<Block*>(data.get_context()), number_of(stream));
  }
};

}  // namespace

int current_stream(c10::DeviceIndex device) {
  return of_thread().streams.at(static_cast<size_t>(device));
}

c10::Allocator& device_allocator() {
  static auto* const allocator = new DeviceAllocator();
  return *allocator;
}

void register_devices() {
  static const bool registered = [] {
    c10::register_privateuse1_backend("sim");
    c10::impl::registerDeviceGuard(kType, new Guard());
    c10::SetAllocator(kType, &device_allocator());
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace stepforge::sim
