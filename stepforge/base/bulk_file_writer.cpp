// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/bulk_file_writer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace stepforge {

namespace {

/// Bytes that a core's cache holds while they are copied and hashed.
constexpr size_t kCachedBytes = size_t{128} << 10;
constexpr std::align_val_t kPieceAlignment{FileWriter::kDirectBlock};

}  // namespace

static_assert(BulkFileWriter::kPieceBytes % FileWriter::kDirectBlock == 0);

void BulkFileWriter::Free::operator()(std::byte* piece) const {
  ::operator delete[](piece, kPieceAlignment);
}

BulkFileWriter::BulkFileWriter(const std::filesystem::path& path)
    : file_(path), piece_(static_cast<std::byte*>(::operator new[](kPieceBytes, kPieceAlignment))) {
  file_.set_direct(true);
}

void BulkFileWriter::write(std::span<const std::byte> bytes) {
  written_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const auto taken = bytes.first(std::min({bytes.size(), kPieceBytes - filled_, kCachedBytes}));
    std::memcpy(piece_.get() + filled_, taken.data(), taken.size());
    hasher_.update(taken);
    filled_ += taken.size();
    bytes = bytes.subspan(taken.size());
    if (filled_ == kPieceBytes) write_piece();
  }
}

void BulkFileWriter::write_piece() {
  file_.write(piece_.get(), std::exchange(filled_, 0));
}

std::string BulkFileWriter::finish() {
  file_.set_direct(false);  // the rest is no whole block
  write_piece();
  file_.finish();
  return hasher_.hash();
}

}  // namespace stepforge
