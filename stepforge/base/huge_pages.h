// SPDX-License-Identifier: Apache-2.0
// Memory for large tables that are read here and there: in pages of 4 KiB, finding a page takes as long as reading it.
#pragma once

#include <cstddef>
#include <new>

#include <sys/mman.h>

namespace stepforge {

/// An allocator that asks for huge pages, which the system may refuse.
template <typename T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <typename U>
  HugePages(const HugePages<U>&) {}  // NOLINT(google-explicit-constructor): containers convert allocators

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, alignment(bytes));
#if defined(MADV_HUGEPAGE)
    if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) { ::operator delete(memory, alignment(count * sizeof(T))); }

  friend bool operator==(const HugePages&, const HugePages&) { return true; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static std::align_val_t alignment(size_t bytes) {
    return std::align_val_t(bytes >= kHugePage ? kHugePage : alignof(T));
  }
};

}  // namespace stepforge
