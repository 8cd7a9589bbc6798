// SPDX-License-Identifier: Apache-2.0
// Damages a file as a failing disk does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

namespace stepforge::testing {

/// Flips a bit of the byte `from_end` bytes before the end of the file.
inline void flip_bit(const std::filesystem::path& path, int64_t from_end = 5, int bit = 4) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const int byte = file.get();
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(byte ^ (1 << bit)));
}

}  // namespace stepforge::testing
