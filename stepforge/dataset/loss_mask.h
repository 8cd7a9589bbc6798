// SPDX-License-Identifier: Apache-2.0
// Which tokens of an indexed dataset count in the loss: `<prefix>.mask` beside the pair, one bit per token. A
// pair without this file counts all tokens. Layout, little-endian: 8 bytes "SFMASK01"; u64 number of tokens;
// then token t is bit t mod 8 of byte 16 + t / 8: 1 if it counts. Bits after the last token are 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "stepforge/base/files.h"

namespace stepforge {

std::filesystem::path mask_path(const std::filesystem::path& prefix);

/// A mask opened for reading. Safe to read from several threads.
class LossMask {
 public:
  /// Throws FormatError naming the file and the fault unless it is the mask of `tokens` tokens.
  LossMask(const std::filesystem::path& path, int64_t tokens);

  /// out[i] = 1 if token first_token + i counts, else 0. The range must lie inside the tokens. Throws Error
  /// naming the file if it cannot be read.
  void read(int64_t first_token, std::span<uint8_t> out) const;

  const FileReader& file() const { return file_; }

 private:
  FileReader file_;
};

/// Packs a file of one byte per token, 0 or 1, into the mask at `path`, flushed to the disk. Throws Error if a
/// file cannot be read or written.
void write_loss_mask(const std::filesystem::path& path, const FileReader& counted);

}  // namespace stepforge
