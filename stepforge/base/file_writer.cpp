// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/file_writer.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::string reason_of_failure() {
  return std::strerror(errno);
}

int require_open(const fs::path& path, int flags) {
  const int descriptor = open_to_write(path, flags);
  if (descriptor < 0) throw Error(format("cannot create {}: {}", path.string(), reason_of_failure()));
  return descriptor;
}

}  // namespace

int open_to_write(const fs::path& path, int flags) {
  const int descriptor =
      open(path.c_str(), O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0666);  // less the umask
  if (descriptor < 0 && errno == ELOOP) {
    throw UsageError(
        format("{} is a symbolic link; writing would change the file that it points to: remove the link",
               path.string()));
  }
  return descriptor;
}

void create_folder_inside(const fs::path& base, const fs::path& inside) {
  std::error_code failure;
  fs::create_directories(base, failure);
  fs::path folder = base;
  for (const fs::path& part : inside) {
    if (failure) break;
    folder /= part;
    fs::create_directory(folder, failure);
    if (fs::is_symlink(fs::symlink_status(folder))) {
      throw UsageError(format(
          "{} is a symbolic link; files would be written where it points to: put a folder in its place",
          folder.string()));
    }
  }
  if (failure) throw Error(format("cannot create the folder {}: {}", folder.string(), failure.message()));
}

FileWriter::FileWriter(const fs::path& path, int64_t keep)
    : FileWriter(path, require_open(path, O_WRONLY | (keep == 0 ? O_TRUNC : 0)), keep) {
  if (keep == 0) return;
  const off_t held = lseek(descriptor_, 0, SEEK_END);
  if (held >= keep && ftruncate(descriptor_, keep) == 0 && lseek(descriptor_, keep, SEEK_SET) == keep) return;
  const std::string reason = held >= 0 && held < keep ? "it is too short" : reason_of_failure();
  throw Error(format("cannot continue {} at byte {}: {}", path.string(), keep, reason));
}

FileWriter::FileWriter(fs::path path, int descriptor, int64_t written)
    : path_(std::move(path)), descriptor_(descriptor), written_(written) {}

FileWriter FileWriter::of_descriptor(const fs::path& path, int descriptor) {
  return {path, descriptor, 0};
}

FileWriter FileWriter::append_to(const fs::path& path) {
  return {path, require_open(path, O_WRONLY | O_APPEND), 0};
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

void FileWriter::write(const void* bytes, size_t count) {
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t put = ::write(descriptor_, next, count);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && direct_) {  // no whole block, or a disk with larger ones
      set_direct(false);
      continue;
    }
    if (put < 0) throw Error(format("cannot write {}: {}", path_.string(), reason_of_failure()));
    next += put;
    count -= static_cast<size_t>(put);
    written_ += put;
  }
}

void FileWriter::set_direct(bool direct) {
  const int flags = fcntl(descriptor_, F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  direct_ = flags >= 0 && fcntl(descriptor_, F_SETFL, wanted) == 0 && direct;
}

void FileWriter::flush() {
  if (fsync(descriptor_) != 0) {
    throw Error(format("cannot flush {} to the disk: {}", path_.string(), reason_of_failure()));
  }
}

void FileWriter::finish() {
  flush();
  const int closed = close(std::exchange(descriptor_, -1));
  if (closed != 0) throw Error(format("cannot close {}: {}", path_.string(), reason_of_failure()));
}

}  // namespace stepforge
