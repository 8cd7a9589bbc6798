// SPDX-License-Identifier: Apache-2.0
// Writes our own files in place and never follows a link. Important files are written through staged.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace stepforge {

/// open(2) for writing one of our files. Creates it, subject to the umask, if it does not exist; never follows a link or
/// waits for the reader of a pipe. `flags` must include O_WRONLY or O_RDWR.
/// Returns -1 with errno if that fails. Throws UsageError naming the link if `path` is one.
int open_to_write(const std::filesystem::path& path, int flags);

/// Creates the folder `base`/`inside` and missing folders above it. Throws UsageError naming the link if a folder below
/// `base` is a link: whoever prepared `base` could choose where we write. Throws Error if it cannot be created.
void create_folder_inside(const std::filesystem::path& base, const std::filesystem::path& inside);

/// Writes a file sequentially. Throws Error (naming the path and the system's reason) on any failed or short
/// write.
class FileWriter {
 public:
  /// Continues after the first `keep` bytes of the file. Throws Error if it holds fewer, UsageError if it is a link.
  explicit FileWriter(const std::filesystem::path& path, int64_t keep = 0);
  /// Takes ownership of `descriptor`, an open empty file; messages call it `path`.
  static FileWriter of_descriptor(const std::filesystem::path& path, int descriptor);
  /// Appends to the file, as other processes may. Throws as above.
  static FileWriter append_to(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  int64_t written() const { return written_; }
  /// Whether to write past the page cache from now on, as far as the file system can: whole blocks of kDirectBlock bytes
  /// from memory that is aligned to as many. Other bytes still go through it.
  void set_direct(bool direct);
  static constexpr size_t kDirectBlock = 4096;
  /// Flushes to the disk.
  void flush();
  /// Flushes to the disk and closes. Without this call the destructor closes the file and ignores errors.
  void finish();

 private:
  FileWriter(std::filesystem::path path, int descriptor, int64_t written);

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t written_ = 0;
  bool direct_ = false;
};

}  // namespace stepforge
