// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/staged_memory.h"

#include <algorithm>
#include <new>

#include <sys/mman.h>

namespace stepforge {

namespace {

/// Pages are made in calls of so many bytes, between which the work can be stopped.
constexpr size_t kPagesAtOnce = size_t{16} << 20;

}  // namespace

std::shared_ptr<std::byte[]> map_memory(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  madvise(mapped, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(mapped), [bytes](std::byte* memory) { munmap(memory, bytes); }};
}

void make_pages(std::span<std::byte> memory, const std::stop_token& stop) {
  while (!memory.empty() && !stop.stop_requested()) {
    const size_t count = std::min(memory.size(), kPagesAtOnce);
    if (madvise(memory.data(), count, MADV_POPULATE_WRITE) != 0) return;
    memory = memory.subspan(count);
  }
}

}  // namespace stepforge
