// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files of 64-bit integers, little-endian and in C order: "\x93NUMPY", version 1.0 (then u16) or
// 2.0 (u32) with the bytes of the header, the header, which is a Python dictionary, and the values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

struct NpyHeader {
  std::vector<int64_t> shape;
  int64_t values = 0;      ///< the product of `shape`
  int64_t data_begin = 0;  ///< where the first value lies in the file
};

/// No header is longer.
inline constexpr int64_t kMaxNpyHeader = 4096;

/// The header of a file of `file_bytes` bytes that begins with `head`: kMaxNpyHeader bytes of it, or all if
/// it is shorter. The values fill the rest of the file exactly. Throws FormatError naming `name` and the
/// byte.
NpyHeader parse_npy_header(std::string_view head, int64_t file_bytes, const std::string& name);

struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;  ///< row by row
};

/// Throws FormatError if the file is malformed, Error if it cannot be read.
NpyArray read_npy(const std::filesystem::path& path);

/// Writes version 1.0. Throws Error.
void write_npy(const std::filesystem::path& path, std::span<const int64_t> shape,
               std::span<const int64_t> values);

}  // namespace stepforge
