#include "stepforge/comm/shared_file.h"

#include <cerrno>
#include <cstdint>
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

/// A lock of one byte that belongs to the open file, not to the process: threads and processes alike.
struct flock byte_lock(int number) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = number;
  lock.l_len = 1;
  return lock;
}

}  // namespace

SharedFile::SharedFile(int descriptor, std::shared_ptr<std::byte> memory)
    : descriptor_(descriptor), memory_(std::move(memory)) {}

SharedFile::~SharedFile() {
  close(descriptor_);
}

std::unique_ptr<SharedFile> SharedFile::create(const std::string& name, std::size_t bytes) {
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (descriptor < 0) {
    if (errno == EEXIST) return nullptr;
    throw Error(format("cannot create the shared memory {}: {}", name, std::strerror(errno)));
  }
  // Without the reservation a full memory would end the process at some later write.
  const int failure = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  std::shared_ptr<std::byte> memory = failure == 0 ? map_file(descriptor, bytes) : nullptr;
  if (memory == nullptr) {
    const int reason = failure != 0 ? failure : errno;
    close(descriptor);
    shm_unlink(name.c_str());
    throw Error(
        format("no room for {} of staging buffers between ranks in /dev/shm ({}); make it larger, for "
               "example with `docker run --shm-size`",
               human_bytes(static_cast<int64_t>(bytes)), std::strerror(reason)));
  }
  return std::unique_ptr<SharedFile>(new SharedFile(descriptor, std::move(memory)));
}

std::unique_ptr<SharedFile> SharedFile::open(const std::string& name, std::size_t bytes) {
  const int descriptor = shm_open(name.c_str(), O_RDWR, 0);
  if (descriptor < 0) {
    if (errno == ENOENT) return nullptr;
    throw Error(format("cannot open the shared memory {}: {}", name, std::strerror(errno)));
  }
  struct stat status{};
  if (fstat(descriptor, &status) != 0 || std::cmp_less(status.st_size, bytes)) {
    close(descriptor);
    return nullptr;
  }
  std::shared_ptr<std::byte> memory = map_file(descriptor, bytes);
  if (memory == nullptr) {
    const int reason = errno;
    close(descriptor);
    throw Error(format("cannot map the shared memory {}: {}", name, std::strerror(reason)));
  }
  return std::unique_ptr<SharedFile>(new SharedFile(descriptor, std::move(memory)));
}

void SharedFile::remove(const std::string& name) {
  shm_unlink(name.c_str());
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
