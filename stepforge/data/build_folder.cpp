// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/build_folder.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr auto kLeftoverAge = std::chrono::hours(24);

/// Removes old folders of killed builds of this output; recent ones may belong to a running process.
void remove_leftovers(const fs::path& output) {
  const std::string start = output.filename().string() + ".building-";
  const auto now = fs::file_time_type::clock::now();
  std::error_code ignored;
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  for (const auto& found : fs::directory_iterator(folder, ignored)) {
    if (!found.path().filename().string().starts_with(start)) continue;
    const auto changed = found.last_write_time(ignored);
    if (!ignored && now - changed > kLeftoverAge) fs::remove_all(found.path(), ignored);
  }
}

}  // namespace

BuildLock::BuildLock(const fs::path& output, const std::function<void()>& on_wait)
    : path_(with_suffix(output, ".lock")) {
  while (true) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
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

BuildFolder::BuildFolder(const fs::path& output, const BuildLock& lock) : kept_(lock.held()) {
  remove_leftovers(output);
  std::string name = kept_ ? kept_path(output).string() : output.string() + ".building-XXXXXX";
  std::error_code failure;
  if (kept_) {
    fs::create_directory(name, failure);
  } else if (mkdtemp(name.data()) == nullptr) {
    failure = std::error_code(errno, std::generic_category());
  }
  if (failure) throw Error(format("cannot create {}: {}", name, failure.message()));
  path_ = name;
}

BuildFolder::~BuildFolder() {
  if (!kept_) remove();
}

fs::path BuildFolder::kept_path(const fs::path& output) {
  return with_suffix(output, ".partial");
}

void BuildFolder::remove() const {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void BuildFolder::publish(const fs::path& entry) {
  fsync_path(path_);
  // mkdtemp creates it without permissions for others.
  fs::permissions(path_, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                             fs::perms::others_read | fs::perms::others_exec);
  std::error_code failure;
  fs::rename(path_, entry, failure);
  if (failure && !fs::is_directory(entry)) {
    throw Error(format("cannot rename {} to {}: {}", path_.string(), entry.string(), failure.message()));
  }
  kept_ = false;
  fsync_path(entry.parent_path());
}

}  // namespace stepforge
