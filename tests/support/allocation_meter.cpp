// SPDX-License-Identifier: Apache-2.0
#include "tests/support/allocation_meter.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

struct Count {
  bool counting = false;
  size_t largest = 0;
  size_t total = 0;
  int64_t live = 0;
  int64_t peak = 0;
};

thread_local Count count;

/// nullptr if there is no memory.
void* try_allocate(size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory != nullptr && count.counting) {
    count.largest = std::max(count.largest, bytes);
    count.total += bytes;
    count.live += static_cast<int64_t>(malloc_usable_size(memory));
    count.peak = std::max(count.peak, count.live);
  }
  return memory;
}

void* allocate(size_t bytes) {
  void* memory = try_allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  if (memory != nullptr && count.counting) count.live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  return allocate(bytes);
}
void* operator new[](size_t bytes) {
  return allocate(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return try_allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return try_allocate(bytes);
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  release(memory);
}

namespace stepforge::testing {

AllocationMeter::AllocationMeter() {
  count = {.counting = true};
}
AllocationMeter::~AllocationMeter() {
  count.counting = false;
}
size_t AllocationMeter::largest() const {
  return count.largest;
}
size_t AllocationMeter::total() const {
  return count.total;
}
size_t AllocationMeter::peak() const {
  return static_cast<size_t>(std::max<int64_t>(count.peak, 0));
}

}  // namespace stepforge::testing
