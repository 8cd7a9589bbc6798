// SPDX-License-Identifier: Apache-2.0
// Writes large files beside other work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "stepforge/base/content_hasher.h"
#include "stepforge/base/file_writer.h"

namespace stepforge {

/// Writes a new file sequentially, and hashes the bytes while they are in the processor's cache. If the file
/// system allows it, they go past the page cache: the kernel copies nothing, and has no bursts of flushing that
/// stop other work. Throws Error as FileWriter does, of some bytes only in a later call.
class BulkFileWriter {
 public:
  /// Each write to the file. After it a thread of low priority waits for its turn.
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  /// Throws UsageError if `path` is a link.
  explicit BulkFileWriter(const std::filesystem::path& path);

  void write(std::span<const std::byte> bytes);
  /// The bytes given to write() so far.
  int64_t written() const { return written_; }
  /// Flushes to the disk, closes, and returns the content hash (files.h) of the bytes given: nothing is read back.
  std::string finish();

 private:
  struct Free {
    void operator()(std::byte* piece) const;
  };

  void write_piece();

  FileWriter file_;
  ContentHasher hasher_;
  std::unique_ptr<std::byte[], Free> piece_;
  size_t filled_ = 0;  ///< bytes of piece_
  int64_t written_ = 0;
};

}  // namespace stepforge
