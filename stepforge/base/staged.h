// SPDX-License-Identifier: Apache-2.0
// Files and folders that appear complete or not at all: they are made under a new name beside their own and renamed.
// The new name, "<name>.stepforge-" and eight hex digits, is a mark of ours: what a killed process left is known by it
// and removed by the next one that writes <name>. Nothing else is removed, and no link is followed.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace stepforge {

/// Writes and flushes a new file beside `path`, renames it to `path`, and flushes the folder. On failure throws
/// Error and leaves `path` unchanged.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// A new file or folder beside the one that it is to become, locked while the object exists, so that other processes
/// leave it alone.
class Staging {
 public:
  enum class Kind { file, folder };

  /// Removes what killed processes left of `target`. Throws Error if nothing can be made beside it.
  Staging(std::filesystem::path target, Kind kind);
  /// Removes what was not published, or what was exchanged with it.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& path() const { return path_; }
  /// Open for writing if it is a file. A duplicate keeps the lock.
  int descriptor() const { return descriptor_; }
  /// Renames it to the target and flushes the folder around it. Throws Error.
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool is_published_ = false;
};

/// A folder that appears under its final name only when complete. Files are written into `staging()`;
/// publish() fsyncs every file and the folder, then renames it to the final name. Without publish() the
/// destructor removes it.
class StagedFolder {
 public:
  /// Makes the folders above it too. Throws Error.
  explicit StagedFolder(const std::filesystem::path& final_path);

  const std::filesystem::path& staging() const { return staging_.path(); }
  /// Throws Error if the final name exists already, or if a file cannot be flushed or renamed.
  void publish();

 private:
  Staging staging_;
};

/// What `path` was to become if its name is that of something staged.
std::optional<std::filesystem::path> staged_target(const std::filesystem::path& path);

/// Removes something staged with all that is in it, unless a process still holds it or it belongs to another user.
/// Returns whether it is gone. Where files cannot be locked, a day must have
/// passed since it changed.
bool remove_abandoned(const std::filesystem::path& path);

/// Removes a folder of ours; it is renamed first, so that a crash leaves no half folder of its name. Throws Error.
void remove_whole_folder(const std::filesystem::path& path);

}  // namespace stepforge
