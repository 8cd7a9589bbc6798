// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/staged.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <random>
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

constexpr std::string_view kMark = ".stepforge-";
constexpr size_t kMarkDigits = 8;
constexpr std::time_t kOldSeconds = 86400;  // a day

fs::path folder_around(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path new_name_for(const fs::path& target) {
  std::random_device random;
  return with_suffix(target, format("{}{:08x}", kMark, random()));
}

/// Returns -1 with errno if the name is taken or nothing can be made there.
int make_new(const fs::path& path, Staging::Kind kind) {
  if (kind == Staging::Kind::file)
    return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (mkdir(path.c_str(), 0777) != 0) return -1;  // less the umask, as all modes here
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const int reason = errno;
  if (descriptor < 0) rmdir(path.c_str());
  errno = reason;
  return descriptor;
}

/// Waits while another process checks whether it is a leftover.
void lock_staged(int descriptor) {
  while (flock(descriptor, LOCK_EX) != 0 && errno == EINTR) {
  }
}

bool is_still_named(int descriptor, const fs::path& path) {
  struct stat opened{};
  struct stat named{};
  return fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

void remove_leftovers_of(const fs::path& target) {
  std::error_code failure;
  const fs::path folder = folder_around(target);
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const auto named = staged_target(entry->path());
    if (named && named->filename() == target.filename()) remove_abandoned(entry->path());
  }
}

}  // namespace

Staging::Staging(fs::path target, Kind kind) : target_(std::move(target)) {
  remove_leftovers_of(target_);
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    path_ = new_name_for(target_);
    descriptor_ = make_new(path_, kind);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) break;
    lock_staged(descriptor_);
    if (is_still_named(descriptor_, path_)) return;
    close(std::exchange(descriptor_, -1));
  }
  throw Error(format("cannot create {}: {}", target_.string(), std::strerror(errno)));
}

Staging::~Staging() {
  std::error_code ignored;
  if (!is_published_) fs::remove_all(path_, ignored);
  close(descriptor_);
}

void Staging::publish() {
  if (rename(path_.c_str(), target_.c_str()) != 0) {
    throw Error(format("cannot rename {} to {}: {}", path_.string(), target_.string(), std::strerror(errno)));
  }
  is_published_ = true;
  fsync_path(folder_around(target_));
}

void write_file_atomic(const fs::path& path, std::string_view bytes) {
  Staging staging(path, Staging::Kind::file);
  FileWriter writer = FileWriter::of_descriptor(path, fcntl(staging.descriptor(), F_DUPFD_CLOEXEC, 0));
  writer.write(bytes);
  writer.finish();
  staging.publish();
}

namespace {

/// `path` without a slash at its end; creates the folders above it.
fs::path with_folders_above(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  std::error_code failure;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), failure);
  if (failure)
    throw Error(format("cannot create the folder {}: {}", path.parent_path().string(), failure.message()));
  return path;
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& final_path)
    : staging_(with_folders_above(final_path), Staging::Kind::folder) {}

void StagedFolder::publish() {
  if (fs::exists(fs::symlink_status(staging_.target())))
    throw Error(format("{} exists already; it is not overwritten", staging_.target().string()));
  for (const auto& entry : fs::recursive_directory_iterator(staging())) fsync_path(entry.path());
  fsync_path(staging());
  staging_.publish();
}

std::optional<fs::path> staged_target(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t marked = kMark.size() + kMarkDigits;
  if (name.size() <= marked) return std::nullopt;
  const std::string_view mark = std::string_view(name).substr(name.size() - marked);
  const std::string_view digits = mark.substr(kMark.size());
  if (!mark.starts_with(kMark) || digits.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return std::nullopt;
  return path.parent_path() / name.substr(0, name.size() - marked);
}

bool remove_abandoned(const fs::path& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0 || status.st_uid != geteuid()) return false;
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return false;
  const int descriptor = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  std::error_code failure;
  const bool abandoned = flock(descriptor, LOCK_EX | LOCK_NB) == 0 ||
                         (errno != EWOULDBLOCK && status.st_mtime < std::time(nullptr) - kOldSeconds);
  if (abandoned) fs::remove_all(path, failure);
  close(descriptor);
  return abandoned && !failure;
}

void remove_whole_folder(const fs::path& path) {
  const fs::path renamed = new_name_for(path);
  std::error_code failure;
  fs::rename(path, renamed, failure);
  if (!failure) fs::remove_all(renamed, failure);
  if (failure) throw Error(format("cannot remove {}: {}", path.string(), failure.message()));
}

}  // namespace stepforge
