// SPDX-License-Identifier: Apache-2.0
// Reads gzip (RFC 1952) and Zstandard (RFC 8878) files from beginning to end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace stepforge {

/// Whether the name ends in .gz or .zst.
bool is_compressed_name(const std::filesystem::path& path);

class Decompressor {
 public:
  Decompressor() = default;
  virtual ~Decompressor() = default;
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  /// Fills `out` with the next bytes of the contents; returns fewer than asked for only at the end. Throws FormatError
  /// naming file and byte if the file is corrupt or truncated, or expands more than a thousandfold beyond 1 GiB.
  virtual int64_t read(std::span<char> out) = 0;
  /// Bytes of the file that have been read.
  virtual int64_t position() const = 0;
};

/// By the name of the file. Throws Error if it cannot be opened.
std::unique_ptr<Decompressor> open_decompressor(const std::filesystem::path& path);

}  // namespace stepforge
