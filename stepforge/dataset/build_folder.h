// SPDX-License-Identifier: Apache-2.0
// The folder in which a dataset is built, and the lock that keeps other processes out of it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "stepforge/base/staged.h"

namespace stepforge {

/// The lock "<output>.stepforge-lock", held while `output` is built; the system releases it if the process dies. The destructor
/// removes the file.
class BuildLock {
 public:
  /// Waits while another process holds it, and calls `on_wait` first. Throws Error if the file cannot be created.
  BuildLock(const std::filesystem::path& output, const std::function<void()>& on_wait);
  ~BuildLock();
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

  /// False where files cannot be locked.
  bool held() const { return held_; }

 private:
  void wait(const std::function<void()>& on_wait);
  bool is_current() const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool held_ = false;
};

/// Under a lock it is "<output>.stepforge-partial", which stays for the next build if this one is killed or interrupted;
/// without one, a Staging, which is removed.
class BuildFolder {
 public:
  /// Throws Error if it cannot be created.
  BuildFolder(const std::filesystem::path& output, const BuildLock& lock);
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The folder under a lock.
  static std::filesystem::path kept_path(const std::filesystem::path& output);
  /// Deletes it with its contents.
  void remove() const;
  /// Renames the folder to `entry`, unless another process did so first.
  void publish(const std::filesystem::path& entry);

 private:
  std::filesystem::path path_;
  std::optional<Staging> staging_;
};

}  // namespace stepforge
