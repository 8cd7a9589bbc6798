// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu_allocator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>
#include <sys/mman.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_table.h"

namespace stepforge {

/// Guarded by the allocator's mutex.
class RankMemory {
 public:
  RankMemory() = default;
  explicit RankMemory(const KernelTable& table) : kernels(table) {}

  void add(size_t bytes) {
    live_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, live_);
  }
  void remove(size_t bytes) { live_ -= static_cast<int64_t>(bytes); }
  void reset_peak() { peak_ = live_; }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

  KernelTable kernels = {};  ///< changed only by add_kernels_to_rank(), so not guarded

 private:
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

/// Rounds up so that nearly equal sizes share blocks: to 64 bytes when small, to an eighth of the next power
/// of two when large.
size_t block_size(size_t bytes) {
  size_t grain = kAlignment;
  while (grain * 16 < bytes) grain *= 2;
  return (bytes + grain - 1) / grain * grain;
}

/// A free block of at most this size is used for one of `size`: the rows of an expert are others in every step.
size_t largest_substitute(size_t size) {
  return size + size / 2;
}

/// `size` is a result of block_size(). Null if the system has no memory left. Large blocks are mapped, so
/// that unmapping them returns their pages at once.
void* block_from_system(size_t size) {
  if (size < kHugePage) return std::aligned_alloc(kAlignment, size);
  void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + size, kHugePage - head);
  madvise(begin + head, size, MADV_HUGEPAGE);
  return begin + head;
}

void block_to_system(void* address, size_t size) {
  if (size < kHugePage) {
    std::free(address);
  } else {
    munmap(address, size);
  }
}

std::shared_ptr<RankMemory>& charged() {
  thread_local std::shared_ptr<RankMemory> rank;
  return rank;
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

  MemoryStats stats() {
    const std::lock_guard lock(mutex_);
    const RankMemory& counted = counted_now();
    return {counted.live(), counted.peak(), reserved_bytes_, system_blocks_};
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    counted_now().reset_peak();
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    if (++steps_ % kTrimSteps != 0) return;
    for (auto& [size, blocks] : free_) {
      give_to_system(size, blocks, blocks.min_free);
      blocks.min_free = blocks.addresses.size();
    }
  }

  void give_all_back() {
    const std::lock_guard lock(mutex_);
    for (auto& [size, blocks] : free_) give_to_system(size, blocks, blocks.addresses.size());
  }

  /// Never destroyed: tensors in static objects may outlive everything else.
  static CachingCpuAllocator& instance() {
    static auto* allocator = new CachingCpuAllocator;
    return *allocator;
  }

 private:
  struct FreeBlocks {
    std::vector<void*> addresses;
    size_t min_free = 0;  ///< the minimum of addresses.size() since the last trim
  };

  struct Block {
    size_t bytes = 0;  ///< requested
    size_t size = 0;
    std::shared_ptr<RankMemory> rank;
  };

  static void release(void* address) {
    if (address != nullptr) instance().give_back(address);
  }

  RankMemory& counted_now() { return charged() != nullptr ? *charged() : process_; }

  void* take(size_t bytes) {
    size_t size = block_size(bytes);
    const std::lock_guard lock(mutex_);
    auto found = free_.lower_bound(size);
    const auto end = free_.upper_bound(largest_substitute(size));
    while (found != end && found->second.addresses.empty()) ++found;
    void* address = nullptr;
    if (found == end) {
      address = from_system(size);
    } else {
      FreeBlocks& blocks = found->second;
      size = found->first;
      address = blocks.addresses.back();
      blocks.addresses.pop_back();
      blocks.min_free = std::min(blocks.min_free, blocks.addresses.size());
    }
    in_use_[address] = {bytes, size, charged()};
    process_.add(bytes);
    if (charged() != nullptr) charged()->add(bytes);
    return address;
  }

  void give_back(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = in_use_.find(address);
    const Block block = std::move(found->second);
    in_use_.erase(found);
    process_.remove(block.bytes);
    if (block.rank != nullptr) block.rank->remove(block.bytes);
    free_[block.size].addresses.push_back(address);
  }

  void* from_system(size_t size) {
    void* address = block_from_system(size);
    if (address == nullptr) {
      // Try again after returning all free blocks.
      for (auto& [free_size, blocks] : free_) give_to_system(free_size, blocks, blocks.addresses.size());
      address = block_from_system(size);
    }
    if (address == nullptr) throw std::bad_alloc();
    reserved_bytes_ += static_cast<int64_t>(size);
    ++system_blocks_;
    return address;
  }

  /// Returns the `count` blocks of one size that have been free for longest.
  void give_to_system(size_t size, FreeBlocks& blocks, size_t count) {
    const auto end = blocks.addresses.begin() + static_cast<std::ptrdiff_t>(count);
    std::for_each(blocks.addresses.begin(), end, [size](void* address) { block_to_system(address, size); });
    blocks.addresses.erase(blocks.addresses.begin(), end);
    blocks.min_free = 0;
    reserved_bytes_ -= static_cast<int64_t>(size * count);
  }

  std::mutex mutex_;
  RankMemory process_;
  int64_t reserved_bytes_ = 0;
  int64_t system_blocks_ = 0;
  int64_t steps_ = 0;
  std::map<size_t, FreeBlocks> free_;  // by size
  std::unordered_map<void*, Block> in_use_;
};

}  // namespace

void install_cpu_allocator() {
  static const bool installed = [] {
    c10::SetCPUAllocator(&CachingCpuAllocator::instance(), /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

std::shared_ptr<RankMemory> make_rank_memory() {
  return std::make_shared<RankMemory>();
}

std::shared_ptr<RankMemory> make_rank_memory(const KernelTable& kernels) {
  return std::make_shared<RankMemory>(kernels);
}

ChargeMemory::ChargeMemory(std::shared_ptr<RankMemory> rank)
    : outer_(std::exchange(charged(), std::move(rank))) {}

ChargeMemory::~ChargeMemory() {
  charged() = std::move(outer_);
}

std::shared_ptr<RankMemory> charged_memory() {
  return charged();
}

void add_kernels_to_rank(void (*add)(KernelTable& table)) {
  if (charged() == nullptr)
    throw Error("this thread works for no rank, so there is no table of kernels to add to");
  add(charged()->kernels);
}

const KernelTable& kernels_of_rank() {
  static constexpr KernelTable kBuiltin;
  const auto& rank = charged();
  return rank == nullptr ? kBuiltin : rank->kernels;
}

MemoryStats cpu_memory() {
  return CachingCpuAllocator::instance().stats();
}

void reset_cpu_peak() {
  CachingCpuAllocator::instance().reset_peak();
}

void trim_cpu_memory() {
  CachingCpuAllocator::instance().trim();
}

void return_free_cpu_memory() {
  CachingCpuAllocator::instance().give_all_back();
}

}  // namespace stepforge
