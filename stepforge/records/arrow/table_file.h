// SPDX-License-Identifier: Apache-2.0
// A file as Arrow reads it: with pread, never mapped, and with no buffer larger than what the file holds.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>

#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <arrow/result.h>
#include <arrow/util/future.h>

#include "stepforge/base/files.h"

namespace stepforge {

class TableFile : public arrow::io::RandomAccessFile {
 public:
  /// `pool` must outlive every buffer. Throws Error if the file cannot be opened.
  TableFile(const std::filesystem::path& path, arrow::MemoryPool* pool) : file_(path), pool_(pool) {}

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }
  /// All bytes read so far, at most size(): how far the reading is.
  int64_t bytes_read() const;
  /// Whether a read from the current position met the end of the file.
  bool met_end() const { return met_end_; }
  /// Throws the Error of the first read that failed, which Arrow reports in its own words.
  void rethrow_failure() const;

  using RandomAccessFile::ReadAsync;
  using RandomAccessFile::ReadAt;
  arrow::Status Close() override;
  bool closed() const override { return false; }
  arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Status Seek(int64_t position) override;
  arrow::Result<int64_t> GetSize() override { return size(); }
  arrow::Result<int64_t> Read(int64_t count, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t count) override;
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t count, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t count) override;
  // At once: a read on a thread of Arrow's could still run when the reader, which failed, and its memory are gone.
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext&, int64_t position,
                                                          int64_t count, bool allow_short_read) override;
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext&, int64_t position,
                                                          int64_t count) override;

 private:
  FileReader file_;
  arrow::MemoryPool* pool_;
  int64_t position_ = 0;
  bool met_end_ = false;
  int64_t bytes_read_ = 0;
  std::exception_ptr failure_;
};

}  // namespace stepforge
