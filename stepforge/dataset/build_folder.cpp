// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/build_folder.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Makes the folder unless an earlier build left it. Its name is ours alone, so a file or a link there is refused.
void make_kept_folder(const fs::path& path) {
  if (mkdir(path.c_str(), 0777) == 0) return;
  const int reason = errno;
  if (reason == EEXIST && fs::is_directory(fs::symlink_status(path))) return;
  throw Error(format("cannot create the folder {}: {}", path.string(), std::strerror(reason)));
}

}  // namespace

BuildLock::BuildLock(const fs::path& output, const std::function<void()>& on_wait)
    : path_(with_suffix(output, ".stepforge-lock")) {
  while (true) {
    descriptor_ = open_to_write(path_, O_RDWR);
    if (descriptor_ < 0) throw Error(format("cannot create {}: {}", path_.string(), std::strerror(errno)));
    held_ = flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (!held_ && errno != EWOULDBLOCK) return;
    if (!held_) wait(on_wait);
    if (!held_ || is_current()) return;
    close(std::exchange(descriptor_, -1));  // the one who held it removed the file
  }
}

void BuildLock::wait(const std::function<void()>& on_wait) {
  try {
    on_wait();
  } catch (...) {
    close(descriptor_);
    throw;
  }
  do {
    held_ = flock(descriptor_, LOCK_EX) == 0;
  } while (!held_ && errno == EINTR);
}

BuildLock::~BuildLock() {
  if (held_) unlink(path_.c_str());
  close(descriptor_);
}

/// Whether the locked file is still the one of that name.
bool BuildLock::is_current() const {
  struct stat locked{};
  struct stat named{};
  return fstat(descriptor_, &locked) == 0 && stat(path_.c_str(), &named) == 0 &&
         locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

BuildFolder::BuildFolder(const fs::path& output, const BuildLock& lock) {
  if (!lock.held()) staging_.emplace(output, Staging::Kind::folder);
  path_ = lock.held() ? kept_path(output) : staging_->path();
  if (lock.held()) make_kept_folder(path_);
}

fs::path BuildFolder::kept_path(const fs::path& output) {
  return with_suffix(output, ".stepforge-partial");
}

void BuildFolder::remove() const {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void BuildFolder::publish(const fs::path& entry) {
  fsync_path(path_);
  std::error_code failure;
  fs::rename(path_, entry, failure);
  if (failure && !fs::is_directory(entry)) {
    throw Error(format("cannot rename {} to {}: {}", path_.string(), entry.string(), failure.message()));
  }
  if (failure) remove();
  fsync_path(entry.parent_path());
}

}  // namespace stepforge
