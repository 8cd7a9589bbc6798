#include "stepforge/base/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::string system_reason() {
  return std::strerror(errno);
}

/// Closes on scope exit.
struct Descriptor {
  int value = -1;
  explicit Descriptor(int descriptor) : value(descriptor) {}
  ~Descriptor() {
    if (value >= 0) close(value);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

/// Opens a regular file for reading and returns its size; refuses folders, pipes and devices (a FIFO would
/// hang).
int64_t open_regular(const fs::path& path, int& descriptor) {
  descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw Error(format("cannot open {}: {}", path.string(), system_reason()));
  struct stat status{};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor);
    throw Error(format("{} is not a regular file", path.string()));
  }
  return status.st_size;
}

}  // namespace

std::string read_file(const fs::path& path, int64_t max_bytes) {
  int raw = -1;
  const int64_t size = open_regular(path, raw);
  const Descriptor descriptor(raw);
  if (size > max_bytes) {
    throw Error(format("{} holds {} bytes; at most {} are accepted here", path.string(), size, max_bytes));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(descriptor.value, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(format("cannot read {}: {}", path.string(), system_reason()));
    if (got == 0) throw Error(format("{} became shorter while it was read", path.string()));
    done += static_cast<size_t>(got);
  }
  return bytes;
}

void fsync_path(const fs::path& path) {
  const Descriptor descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.value < 0 || fsync(descriptor.value) != 0) {
    throw Error(format("cannot flush {} to the disk: {}", path.string(), system_reason()));
  }
}

FileWriter::FileWriter(const fs::path& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw Error(format("cannot create {}: {}", path.string(), system_reason()));
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

void FileWriter::write(const void* bytes, size_t count) {
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t put = ::write(descriptor_, next, count);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw Error(format("cannot write {}: {}", path_.string(), system_reason()));
    next += put;
    count -= static_cast<size_t>(put);
    written_ += put;
  }
}

void FileWriter::finish() {
  if (fsync(descriptor_) != 0) {
    throw Error(format("cannot flush {} to the disk: {}", path_.string(), system_reason()));
  }
  const int closed = close(std::exchange(descriptor_, -1));
  if (closed != 0) throw Error(format("cannot close {}: {}", path_.string(), system_reason()));
}

void write_file_atomic(const fs::path& path, std::string_view bytes) {
  fs::path staging = path;
  staging += ".tmp";
  try {
    FileWriter writer(staging);
    writer.write(bytes);
    writer.finish();
    if (rename(staging.c_str(), path.c_str()) != 0) {
      throw Error(format("cannot rename {} to {}: {}", staging.string(), path.string(), system_reason()));
    }
    fsync_path(path.has_parent_path() ? path.parent_path() : fs::path("."));
  } catch (...) {
    std::error_code ignored;
    fs::remove(staging, ignored);
    throw;
  }
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  int raw = -1;
  size_ = static_cast<size_t>(open_regular(path, raw));
  const Descriptor descriptor(raw);
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.value, 0);
  if (mapped == MAP_FAILED) throw Error(format("cannot map {}: {}", path.string(), system_reason()));
  address_ = mapped;
}

MappedFile::~MappedFile() {
  if (address_ != nullptr) munmap(address_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      address_(std::exchange(other.address_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

fs::path StagedFolder::staging_of(fs::path final_path) {
  final_path += ".tmp";
  return final_path;
}

StagedFolder::StagedFolder(fs::path final_path)
    : final_(std::move(final_path)), staging_(staging_of(final_)) {
  std::error_code failure;
  fs::remove_all(staging_, failure);
  if (!failure) fs::create_directories(staging_, failure);
  if (failure) throw Error(format("cannot create {}: {}", staging_.string(), failure.message()));
}

StagedFolder::~StagedFolder() {
  if (published_) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void StagedFolder::publish() {
  if (fs::exists(final_)) throw Error(format("{} exists already; it is not overwritten", final_.string()));
  for (const auto& entry : fs::recursive_directory_iterator(staging_)) fsync_path(entry.path());
  fsync_path(staging_);
  if (rename(staging_.c_str(), final_.c_str()) != 0) {
    throw Error(format("cannot rename {} to {}: {}", staging_.string(), final_.string(), system_reason()));
  }
  published_ = true;
  fsync_path(final_.has_parent_path() ? final_.parent_path() : fs::path("."));
}

std::string content_hash(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string content_hash(std::string_view bytes) {
  return content_hash(std::as_bytes(std::span(bytes)));
}

std::string file_hash(const fs::path& path) {
  int raw = -1;
  open_regular(path, raw);
  const Descriptor descriptor(raw);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::string chunk(size_t{1} << 20, '\0');
  while (true) {
    const ssize_t got = read(descriptor.value, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(format("cannot read {}: {}", path.string(), system_reason()));
    if (got == 0) break;
    XXH3_128bits_update(state.get(), chunk.data(), static_cast<size_t>(got));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace stepforge
