// SPDX-License-Identifier: Apache-2.0
// Contents that are read from beginning to end: of compressed files, and of tables as JSON Lines.
#pragma once

#include <cstdint>
#include <span>

namespace stepforge {

/// Longer lines, paragraphs and rows are refused: a record is held in memory whole, and takes about sixteen times as much
/// while it is parsed and encoded. No text is that long.
inline constexpr int64_t kMaxRecordBytes = int64_t{64} << 20;

class ContentReader {
 public:
  ContentReader() = default;
  virtual ~ContentReader() = default;
  ContentReader(const ContentReader&) = delete;
  ContentReader& operator=(const ContentReader&) = delete;

  /// Fills `out` with the next bytes of the contents; returns fewer than asked for only at the end. Throws FormatError
  /// naming the file and the place in it if the file is corrupt or truncated.
  virtual int64_t read(std::span<char> out) = 0;
  /// Bytes of the file that have been read, for progress.
  virtual int64_t position() const = 0;
};

inline constexpr int64_t kMaxContentRatio = 1000;

/// Whether contents of `output` bytes, made of `input` bytes of a file, are to be refused as a decompression bomb.
constexpr bool expands_too_much(int64_t input, int64_t output) {
  constexpr int64_t kFreeOutput = int64_t{1} << 30;
  return output > kFreeOutput && output / kMaxContentRatio > input;
}

}  // namespace stepforge
