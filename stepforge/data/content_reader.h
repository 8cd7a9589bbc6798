// SPDX-License-Identifier: Apache-2.0
// The contents of files that are read from beginning to end: compressed files, and tables as JSON Lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace stepforge {

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

/// Whether the contents of a file of this name have to be read from the beginning, through a ContentReader.
bool is_sequential_name(const std::filesystem::path& path);

/// By the name of the file, for which is_sequential_name() holds. Of a table only `column` is read, if it has that column.
/// Throws Error if it cannot be opened.
std::unique_ptr<ContentReader> open_contents(const std::filesystem::path& path,
                                             const std::optional<std::string>& column = std::nullopt);

inline constexpr int64_t kMaxContentRatio = 1000;

/// Whether contents of `output` bytes, made of `input` bytes of a file, are to be refused as a decompression bomb.
constexpr bool expands_too_much(int64_t input, int64_t output) {
  constexpr int64_t kFreeOutput = int64_t{1} << 30;
  return output > kFreeOutput && output / kMaxContentRatio > input;
}

}  // namespace stepforge
