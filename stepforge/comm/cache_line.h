// SPDX-License-Identifier: Apache-2.0
// Slices of a buffer that several ranks or threads write begin at multiples of a cache line.
#pragma once

#include <cstddef>

namespace stepforge {

/// A multiple of every element size.
inline constexpr std::size_t kCacheLineBytes = 64;

constexpr std::size_t cache_lines_of(std::size_t bytes) {
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes;
}

}  // namespace stepforge
