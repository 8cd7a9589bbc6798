// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/staged_memory.h"

#include <new>

#include <sys/mman.h>

namespace stepforge {

namespace {

/// The smallest page of any processor.
constexpr size_t kPage = 4096;

}  // namespace

std::shared_ptr<std::byte[]> map_memory(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  madvise(mapped, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(mapped), [bytes](std::byte* memory) { munmap(memory, bytes); }};
}

void make_pages(std::span<std::byte> memory, const std::stop_token& stop) {
  // Not by madvise: a thread of low priority would hold the lock that other threads need to map memory.
  for (size_t begin = 0; begin < memory.size() && !stop.stop_requested(); begin += kPage) {
    volatile std::byte& first = memory[begin];
    first = std::byte(first);  // a write makes the page
  }
}

}  // namespace stepforge
