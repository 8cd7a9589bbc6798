// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/shared_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// nullptr with errno set if the kernel refuses.
std::shared_ptr<std::byte> map_file(int descriptor, std::size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(address), [bytes](std::byte* memory) { munmap(memory, bytes); }};
}

/// A lock of byte `number`. It belongs to the open file description, not to the process, so it works between
/// threads too.
struct flock byte_lock(int number) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = number;
  lock.l_len = 1;
  return lock;
}

std::string path_of(const std::string& name) {
  return shared_folder() / name;
}

/// Whether it belongs to this user alone.
bool is_private(const struct stat& found, mode_t type) {
  return (found.st_mode & S_IFMT) == type && found.st_uid == geteuid() && (found.st_mode & 077) == 0;
}

/// Whether nobody has taken the folder's name from this user.
bool is_free_or_private(const std::string& folder) {
  struct stat found{};
  return lstat(folder.c_str(), &found) != 0 || is_private(found, S_IFDIR);
}

void remove_file(const std::filesystem::path& path) {
  unlink(path.c_str());
  rmdir(path.parent_path().c_str());  // fails while other names are in it
}

/// Creates the folder and returns the result of `call` for its path; repeats both if the folder vanishes in between, as
/// remove_file() removes an empty one, or another user is faster.
template <typename Call>
int in_folder(const Call& call) {
  int result = -1;
  for (int i = 0; i < 100; ++i) {
    const std::filesystem::path folder = shared_folder();
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      throw Error(format("cannot create the folder {}: {}", folder.string(), std::strerror(errno)));
    }
    errno = ENOENT;
    if (is_free_or_private(folder)) result = call(folder);
    if (result >= 0 || errno != ENOENT) break;
  }
  return result;
}

}  // namespace

std::filesystem::path first_private_folder(const std::string& path) {
  constexpr int kMostNames = 16;
  for (int number = 1; number <= kMostNames; ++number) {
    const std::string folder = number == 1 ? path : format("{}-{}", path, number);
    if (is_free_or_private(folder)) return folder;
  }
  throw Error(
      format("{} and {} names beside it are taken: none is a folder of user {} without access for others. "
             "Ask their owners to remove them, or set comm.backend=gloo, which needs no shared memory",
             path, kMostNames - 1, geteuid()));
}

std::filesystem::path shared_folder() {
  return first_private_folder(format("/dev/shm/stepforge-{}", geteuid()));
}

SharedFile::SharedFile(int descriptor, std::shared_ptr<std::byte> memory)
    : descriptor_(descriptor), memory_(std::move(memory)) {}

SharedFile::~SharedFile() {
  unpublish();
  close(descriptor_);
}

std::unique_ptr<SharedFile> SharedFile::create(std::size_t bytes) {
  const int descriptor = in_folder([](const std::filesystem::path& folder) {
    return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  });
  if (descriptor < 0) {
    throw Error(
        format("cannot create shared memory in {}: {}", shared_folder().string(), std::strerror(errno)));
  }
  // Without this reservation, a later write would kill the process when memory runs out.
  const int failure = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  std::shared_ptr<std::byte> memory = failure == 0 ? map_file(descriptor, bytes) : nullptr;
  if (memory == nullptr) {
    const int reason = failure != 0 ? failure : errno;
    close(descriptor);
    throw Error(format(
        "not enough room in /dev/shm for {} of staging buffers between ranks ({}); make it larger, for "
        "example with `docker run --shm-size`",
        human_bytes(static_cast<int64_t>(bytes)), std::strerror(reason)));
  }
  auto file = std::unique_ptr<SharedFile>(new SharedFile(descriptor, std::move(memory)));
  file->lock(0);
  return file;
}

std::unique_ptr<SharedFile> SharedFile::open(const std::string& name, std::size_t min_bytes) {
  const std::string path = path_of(name);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) {
    if (errno == ENOENT) return nullptr;
    throw Error(format("cannot open the shared memory {}: {}", path, std::strerror(errno)));
  }
  auto file = std::unique_ptr<SharedFile>(new SharedFile(descriptor, nullptr));
  struct stat status{};
  if (fstat(descriptor, &status) != 0) return nullptr;
  if (!is_private(status, S_IFREG)) {
    throw Error(format(
        "{} must belong to user {} and give others no access, but belongs to user {} with mode {:o}; remove "
        "it, or ask its owner to remove it",
        path, geteuid(), status.st_uid, status.st_mode & 07777));
  }
  if (std::cmp_less(status.st_size, min_bytes)) return nullptr;
  file->memory_ = map_file(descriptor, static_cast<std::size_t>(status.st_size));
  if (file->memory_ == nullptr) {
    throw Error(format("cannot map the shared memory {}: {}", path, std::strerror(errno)));
  }
  return file;
}

void SharedFile::remove_dead() {
  std::error_code ignored;  // another job may remove the folder meanwhile
  for (const auto& entry : std::filesystem::directory_iterator(shared_folder(), ignored)) {
    const std::string name = entry.path().filename();
    const auto file = open(name, 1);
    if (file == nullptr || !file->is_locked_by_another(0)) remove_file(entry.path());
  }
}

bool SharedFile::publish(const std::string& name) {
  const std::string own = format("/proc/self/fd/{}", descriptor_);
  std::filesystem::path path;
  const int result = in_folder([&](const std::filesystem::path& folder) {
    path = folder / name;
    return linkat(AT_FDCWD, own.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW);
  });
  if (result == 0) {
    path_ = path;
    return true;
  }
  if (errno == EEXIST) return false;
  throw Error(format("cannot create the shared memory {}: {}", path.string(), std::strerror(errno)));
}

void SharedFile::unpublish() {
  if (!path_.empty()) remove_file(std::exchange(path_, {}));
}

bool SharedFile::lock(int number) const {
  struct flock lock = byte_lock(number);
  return fcntl(descriptor_, F_OFD_SETLK, &lock) == 0;
}

bool SharedFile::is_locked_by_another(int number) const {
  struct flock lock = byte_lock(number);
  return fcntl(descriptor_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool SharedFile::is_removed() const {
  struct stat status{};
  return fstat(descriptor_, &status) != 0 || status.st_nlink == 0;
}

}  // namespace stepforge
