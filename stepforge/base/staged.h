// SPDX-License-Identifier: Apache-2.0
// Files and folders that appear complete or not at all: they are created under a temporary name beside the final one,
// then renamed. The temporary name, "<name>.stepforge-" and eight hex digits, marks leftovers of killed processes: the
// next process that writes <name> removes them. Nothing else is removed, and no link is followed.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace stepforge {

/// Writes and flushes a new file beside `path`, renames it to `path`, and flushes the folder. On failure throws
/// Error and leaves `path` unchanged.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// A new file or folder under its temporary name, locked while the object exists, so that other processes leave it
/// alone.
class Staging {
 public:
  enum class Kind { file, folder };

  /// Removes what killed processes left of `target`. Throws Error if nothing can be created beside it.
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
  /// Creates the folders above it too. Throws Error.
  explicit StagedFolder(const std::filesystem::path& final_path);

  const std::filesystem::path& staging() const { return staging_.path(); }
  /// Throws Error if the final name exists already, or if a file cannot be flushed or renamed.
  void publish();

 private:
  Staging staging_;
};

/// The final path of `path`, if its name is a temporary one.
std::optional<std::filesystem::path> staged_target(const std::filesystem::path& path);

/// Removes a staged file or folder with its contents, unless a process still holds it or it belongs to another user.
/// Where files cannot be locked, it must not have changed for a day. Returns whether it is gone.
bool remove_abandoned(const std::filesystem::path& path);

/// Removes one of our folders. Renames it first, so that a crash leaves no incomplete folder of its name. Throws Error.
void remove_whole_folder(const std::filesystem::path& path);

}  // namespace stepforge
