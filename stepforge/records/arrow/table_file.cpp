// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/arrow/table_file.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <arrow/buffer.h>
#include <arrow/status.h>

#include "stepforge/base/error.h"

namespace stepforge {

int64_t TableFile::bytes_read() const {
  return std::min(bytes_read_, size());
}

void TableFile::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

arrow::Status TableFile::Close() {
  return arrow::Status::OK();
}

arrow::Status TableFile::Seek(int64_t position) {
  if (position < 0 || position > size())
    return arrow::Status::Invalid("offset ", position, " is outside of the file of ", size(), " bytes");
  position_ = position;
  return arrow::Status::OK();
}

arrow::Result<int64_t> TableFile::ReadAt(int64_t position, int64_t count, void* out) {
  if (position < 0 || count < 0 || position > size()) {
    return arrow::Status::Invalid(count, " bytes at offset ", position, " are outside of the file of ",
                                  size(), " bytes");
  }
  const int64_t held = std::min(count, size() - position);
  try {
    file_.read(position, {static_cast<std::byte*>(out), static_cast<size_t>(held)});
  } catch (const Error& error) {
    if (!failure_) failure_ = std::current_exception();
    return arrow::Status::IOError(error.what());
  }
  bytes_read_ += held;
  return held;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> TableFile::ReadAt(int64_t position, int64_t count) {
  // Counts come from the file: allocate no more than can be filled.
  const int64_t held = std::clamp<int64_t>(size() - position, 0, std::max<int64_t>(count, 0));
  ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(held, pool_));
  ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, std::min(count, held), buffer->mutable_data()));
  ARROW_RETURN_NOT_OK(buffer->Resize(got));
  return std::shared_ptr<arrow::Buffer>(std::move(buffer));
}

arrow::Future<std::shared_ptr<arrow::Buffer>> TableFile::ReadAsync(const arrow::io::IOContext&,
                                                                   int64_t position, int64_t count,
                                                                   bool allow_short_read) {
  return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(
      ReadAt(position, count, allow_short_read));
}

arrow::Future<std::shared_ptr<arrow::Buffer>> TableFile::ReadAsync(const arrow::io::IOContext&,
                                                                   int64_t position, int64_t count) {
  return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(ReadAt(position, count));
}

arrow::Result<int64_t> TableFile::Read(int64_t count, void* out) {
  ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position_, count, out));
  position_ += got;
  met_end_ = met_end_ || got < count;
  return got;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> TableFile::Read(int64_t count) {
  ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, count));
  position_ += buffer->size();
  met_end_ = met_end_ || buffer->size() < count;
  return buffer;
}

}  // namespace stepforge
