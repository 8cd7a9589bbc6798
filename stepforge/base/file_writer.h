// SPDX-License-Identifier: Apache-2.0
// Writing files of ours in place: a link in their place is never followed. Files that matter are written through
// staged.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace stepforge {

/// open(2) of a file of ours for writing: creates it if there is none, with the permissions that the umask leaves, and
/// neither follows a link nor waits for the reader of a pipe. `flags` are further ones, O_WRONLY or O_RDWR among them.
/// Returns -1 with errno if that fails. Throws UsageError naming the link if `path` is one.
int open_to_write(const std::filesystem::path& path, int flags);

/// Makes the folder `base`/`inside` and what is missing on the way. Throws UsageError naming the link if a folder below
/// `base` is one: whoever prepared `base` would choose where we write. Throws Error if it cannot be made.
void create_folder_inside(const std::filesystem::path& base, const std::filesystem::path& inside);

/// Writes a file sequentially. Throws Error (naming the path and the system's reason) on any failed or short
/// write.
class FileWriter {
 public:
  /// Continues after the first `keep` bytes of the file. Throws Error if it holds fewer, UsageError if it is a link.
  explicit FileWriter(const std::filesystem::path& path, int64_t keep = 0);
  /// Takes over `descriptor`, of the empty file that messages call `path`.
  static FileWriter of_descriptor(const std::filesystem::path& path, int descriptor);
  /// Adds to the end of the file, which others may do too. Throws as above.
  static FileWriter append_to(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  int64_t written() const { return written_; }
  /// Flushes to the disk.
  void flush();
  /// Flushes to the disk and closes. Without this call the destructor closes the file and ignores errors.
  void finish();

 private:
  FileWriter(std::filesystem::path path, int descriptor, int64_t written);

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t written_ = 0;
};

}  // namespace stepforge
