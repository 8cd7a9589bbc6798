// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "stepforge/base/content_hasher.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::string system_reason() {
  return std::strerror(errno);
}

}  // namespace

FileReader::FileReader(fs::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a FIFO would block.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw Error(format("cannot open {}: {}", path_.string(), system_reason()));
  struct stat status{};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw Error(format("{} is not a regular file", path_.string()));
  }
  size_ = status.st_size;
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(std::exchange(other.size_, 0)) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

void FileReader::read(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = pread(descriptor_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(format("cannot read {}: {}", path_.string(), system_reason()));
    if (got == 0) {
      throw Error(
          format("{} became shorter while it was read: it ends at byte {} and had {} bytes; start again "
                 "when no other program writes to it",
                 path_.string(), offset, size_));
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

std::string FileReader::text(int64_t begin, int64_t end) const {
  std::string bytes(static_cast<size_t>(end - begin), '\0');
  read(begin, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string read_file(const fs::path& path, int64_t max_bytes) {
  const FileReader file(path);
  if (file.size() > max_bytes) {
    throw FormatError(
        format("{} holds {} bytes; at most {} are accepted here", path.string(), file.size(), max_bytes));
  }
  return file.text(0, file.size());
}

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<uint8_t>(c) < 0x20 || c == 0x7F;
  });
}

bool is_regular_file_itself(const fs::path& path) {
  std::error_code failure;
  const fs::file_type type = fs::symlink_status(path, failure).type();
  if (type == fs::file_type::none) {
    throw Error(format("cannot read {}: {}", path.string(), failure.message()));
  }
  return type == fs::file_type::regular;
}

int64_t file_bytes(const fs::path& path) {
  std::error_code failure;
  const uintmax_t bytes = fs::file_size(path, failure);
  if (failure) throw Error(format("cannot read {}: {}", path.string(), failure.message()));
  return static_cast<int64_t>(bytes);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  try {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
    return paths;
  } catch (const fs::filesystem_error& failure) {
    throw Error(format("cannot read the folder {}: {}", folder.string(), failure.code().message()));
  }
}

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return extension;
}

fs::path with_suffix(const fs::path& path, std::string_view suffix) {
  fs::path result = path;
  result += suffix;
  return result;
}

fs::path set_aside(const fs::path& path, std::string_view suffix) {
  fs::path aside = path;
  aside += suffix;
  for (int number = 2; fs::exists(fs::symlink_status(aside)); ++number) {
    aside = path;
    aside += format("{}-{}", suffix, number);
  }
  std::error_code failure;
  fs::rename(path, aside, failure);
  if (failure) {
    throw Error(format("cannot rename {} to {}: {}", path.string(), aside.string(), failure.message()));
  }
  return aside;
}

void fsync_path(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool flushed = descriptor >= 0 && fsync(descriptor) == 0;
  const std::string reason = system_reason();
  if (descriptor >= 0) close(descriptor);
  if (!flushed) throw Error(format("cannot flush {} to the disk: {}", path.string(), reason));
}

Hash128 hash128(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

std::string content_hash(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string content_hash(std::string_view bytes) {
  return content_hash(std::as_bytes(std::span(bytes)));
}

std::string range_hash(const FileReader& file, int64_t begin, int64_t end,
                       const std::function<void()>& on_chunk) {
  ContentHasher hasher;
  constexpr int64_t kChunkBytes = int64_t{1} << 20;
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(end - begin, kChunkBytes)));
  for (; begin < end; begin += kChunkBytes) {
    const auto read = std::span(chunk).first(static_cast<size_t>(std::min(end - begin, kChunkBytes)));
    file.read(begin, read);
    hasher.update(read);
    if (on_chunk) on_chunk();
  }
  return hasher.hash();
}

std::string file_hash(const fs::path& path, const std::function<void()>& on_chunk) {
  const FileReader file(path);
  return range_hash(file, 0, file.size(), on_chunk);
}

}  // namespace stepforge
