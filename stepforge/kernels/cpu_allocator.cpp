#include "stepforge/kernels/cpu_allocator.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>
#include <sys/mman.h>

namespace stepforge {

namespace {

constexpr size_t alignment = 64;
constexpr size_t huge_page = size_t{2} << 20;

/// Rounds up so that nearly equal sizes share blocks: to 64 bytes when small, to an eighth of the next power
/// of two when large.
size_t block_size(size_t bytes) {
  size_t grain = alignment;
  while (grain * 16 < bytes) grain *= 2;
  return (bytes + grain - 1) / grain * grain;
}

class CachingCpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* address = bytes == 0 ? nullptr : take(bytes);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  MemoryCount count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    count_.peak_bytes = count_.live_bytes;
  }

  /// Never destroyed: tensors in static objects may outlive everything else.
  static CachingCpuAllocator& instance() {
    static auto* allocator = new CachingCpuAllocator;
    return *allocator;
  }

 private:
  static void release(void* address) {
    if (address != nullptr) instance().give_back(address);
  }

  void* take(size_t bytes) {
    const size_t size = block_size(bytes);
    const std::lock_guard lock(mutex_);
    void* address = nullptr;
    auto found = free_.find(size);
    if (found != free_.end() && !found->second.empty()) {
      address = found->second.back();
      found->second.pop_back();
    } else {
      address = from_system(size);
    }
    in_use_[address] = bytes;
    count_.live_bytes += static_cast<int64_t>(bytes);
    count_.peak_bytes = std::max(count_.peak_bytes, count_.live_bytes);
    return address;
  }

  void give_back(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = in_use_.find(address);
    const size_t bytes = found->second;
    in_use_.erase(found);
    count_.live_bytes -= static_cast<int64_t>(bytes);
    free_[block_size(bytes)].push_back(address);
  }

  void* from_system(size_t size) {
    const bool large = size >= huge_page;
    void* address = std::aligned_alloc(large ? huge_page : alignment, size);
    if (address == nullptr) address = after_trimming(size, large);
    if (large) madvise(address, size, MADV_HUGEPAGE);
    count_.reserved_bytes += static_cast<int64_t>(size);
    return address;
  }

  /// The kept blocks go back to the system before an allocation is given up.
  void* after_trimming(size_t size, bool large) {
    for (auto& [kept_size, blocks] : free_) {
      for (void* block : blocks) {
        std::free(block);
        count_.reserved_bytes -= static_cast<int64_t>(kept_size);
      }
      blocks.clear();
    }
    void* address = std::aligned_alloc(large ? huge_page : alignment, size);
    if (address == nullptr) throw std::bad_alloc();
    return address;
  }

  std::mutex mutex_;
  MemoryCount count_;
  std::unordered_map<size_t, std::vector<void*>> free_;
  std::unordered_map<void*, size_t> in_use_;
};

}  // namespace

void install_cpu_allocator() {
  static const bool installed = [] {
    c10::SetCPUAllocator(&CachingCpuAllocator::instance(), /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

MemoryCount cpu_memory() {
  return CachingCpuAllocator::instance().count();
}
void reset_cpu_peak() {
  CachingCpuAllocator::instance().reset_peak();
}

}  // namespace stepforge
