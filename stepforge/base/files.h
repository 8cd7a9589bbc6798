// SPDX-License-Identifier: Apache-2.0
// Reading files with bounds, names and hashes. file_writer.h and staged.h write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

/// The whole file as bytes. Throws Error if it is not a regular file or cannot be read, FormatError if it holds
/// more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 30);

/// The extension of the name in small letters, such as ".txt"; "" if it has none.
std::string lower_extension(const std::filesystem::path& path);

/// `path` with `suffix` after its name.
std::filesystem::path with_suffix(const std::filesystem::path& path, std::string_view suffix);

/// A regular file, open for random access from several threads. Files are read, never mapped: if another
/// program truncates a mapped file, SIGBUS kills the process, and only a signal handler of the whole process
/// could turn that into an error.
class FileReader {
 public:
  /// Throws Error if it is not a regular file or cannot be opened.
  explicit FileReader(std::filesystem::path path);
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The size when the file was opened.
  int64_t size() const { return size_; }
  /// Fills `out` from byte `offset`. Throws Error naming the file if it cannot be read or was truncated after
  /// it was opened.
  void read(int64_t offset, std::span<std::byte> out) const;
  /// Bytes [begin, end), which must lie inside size().
  std::string text(int64_t begin, int64_t end) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// A name without '/', '\\' or control bytes, not empty, "." or "..", at most 255 bytes.
bool is_plain_file_name(std::string_view name);

/// Whether `path` itself (not the target of a link) is a regular file; false if it does not exist. Throws Error if its
/// type cannot be read.
bool is_regular_file_itself(const std::filesystem::path& path);

/// Throws Error if it cannot be read.
int64_t file_bytes(const std::filesystem::path& path);

/// The entries of `folder`, in no particular order. Throws Error if it cannot be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Renames `path` to `path` + `suffix`, or to the first free of `path` + `suffix` + "-2", "-3", ..., and
/// returns the new name. Throws Error.
std::filesystem::path set_aside(const std::filesystem::path& path, std::string_view suffix);

/// Flushes a file or folder to the disk.
void fsync_path(const std::filesystem::path& path);

/// A 128-bit hash by XXH3: detects damage, does not protect against an attacker.
struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const Hash128&, const Hash128&) = default;
};
Hash128 hash128(std::string_view bytes);

/// The same as 32 hex digits.
std::string content_hash(std::span<const std::byte> bytes);
std::string content_hash(std::string_view bytes);
/// The same for bytes [begin, end) of a file. Calls `on_chunk` after each MiB read.
std::string range_hash(const FileReader& file, int64_t begin, int64_t end,
                       const std::function<void()>& on_chunk = {});
std::string file_hash(const std::filesystem::path& path, const std::function<void()>& on_chunk = {});

}  // namespace stepforge
