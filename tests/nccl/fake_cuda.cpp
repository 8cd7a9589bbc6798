// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/fake_cuda.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

CUstream_st::CUstream_st()
    : random_(stepforge::testing::FakeCuda::get().next_stream()), thread_([this] { serve(); }) {}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CUstream_st::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void CUstream_st::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !is_busy_; });
}

void CUstream_st::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    is_busy_ = true;
    lock.unlock();
    if (random_() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
    work();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

namespace stepforge::testing {

FakeCuda& FakeCuda::get() {
  static FakeCuda cuda;
  return cuda;
}

std::byte* FakeCuda::allocate(std::size_t bytes) {
  std::vector<std::byte> memory(bytes + 1, std::byte{0xCD});
  const std::lock_guard lock(mutex_);
  std::byte* const address = memory.data();
  memory_.emplace(address, std::move(memory));
  return address;
}

void FakeCuda::free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end()) {
    faults_.emplace_back("memory is freed twice");
    return;
  }
  std::ranges::fill(found->second, std::byte{0xDD});
  memory_.erase(found);
}

bool FakeCuda::owns(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto* const byte = static_cast<const std::byte*>(address);
  const auto after = memory_.upper_bound(const_cast<std::byte*>(byte));
  if (after == memory_.begin()) return false;
  const auto& [begin, memory] = *std::prev(after);
  return byte < begin + memory.size();
}

void FakeCuda::fault(const std::string& text) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(text);
}

std::vector<std::string> FakeCuda::faults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(faults_, {});
}

int FakeCuda::allocations() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(memory_.size());
}

int FakeCuda::events() {
  const std::lock_guard lock(mutex_);
  return events_;
}

void FakeCuda::count_event(int change) {
  const std::lock_guard lock(mutex_);
  events_ += change;
}

unsigned FakeCuda::next_stream() {
  const std::lock_guard lock(mutex_);
  return streams_++;
}

void FakeCuda::set_bus(int device, int bus) {
  const std::lock_guard lock(mutex_);
  buses_[device] = bus;
}

int FakeCuda::bus(int device) {
  const std::lock_guard lock(mutex_);
  const auto found = buses_.find(device);
  return found == buses_.end() ? device : found->second;
}

namespace {
int& current_device() {
  static thread_local int device = 0;
  return device;
}
}  // namespace

}  // namespace stepforge::testing

using stepforge::testing::current_device;
using stepforge::testing::FakeCuda;

/// An event that was never recorded counts as passed.
struct CUevent_st {
  std::shared_ptr<std::atomic<bool>> passed = std::make_shared<std::atomic<bool>>(true);
};

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current_device() = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", FakeCuda::get().bus(device));
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (flags != cudaEventDisableTiming) FakeCuda::get().fault("an event that measures time");
  *event = new CUevent_st;
  FakeCuda::get().count_event(1);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->passed = std::make_shared<std::atomic<bool>>(false);
  stream->enqueue([passed = event->passed] { *passed = true; });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return *event->passed ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  FakeCuda::get().count_event(-1);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  stream->enqueue([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->synchronize();
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t /*error*/) {
  return "an error of the fake";
}

}  // extern "C"
