// SPDX-License-Identifier: Apache-2.0
// Files of shared memory in a folder of this user, which hold the arenas of processes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace stepforge {

/// The first of `path`, `path`-2, `path`-3 and so on that does not exist yet or is a folder which only this user may
/// open: another user may have taken the others. Throws Error if all 16 are taken.
std::filesystem::path first_private_folder(const std::string& path);
/// /dev/shm/stepforge-<user id>, or a name beside it if another user has taken that. Only this user may open it, so
/// others can neither guess nor take names in it. All ranks of a host find the same.
std::filesystem::path shared_folder();

/// An open file of shared memory and its mapping. It has numbered locks: a lock is released when its process
/// ends, for whatever reason, and works across containers that share the memory.
class SharedFile {
 public:
  /// A new file of `bytes` zeros without a name; the object holds lock 0. Throws Error if there is not enough
  /// room, or if there is no folder for this user alone.
  static std::unique_ptr<SharedFile> create(std::size_t bytes);
  /// nullptr if no file with this name has at least `min_bytes` bytes. Throws Error if it belongs to another
  /// user.
  static std::unique_ptr<SharedFile> open(const std::string& name, std::size_t min_bytes);
  /// Removes the names of files whose lock 0 is free: their processes were killed.
  static void remove_dead();

  /// Removes the name as unpublish() does.
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// Gives the file a name by which other processes can open it; false if another file has that name.
  bool publish(const std::string& name);
  /// Removes the name; processes that have opened the file keep it.
  void unpublish();

  /// The mapping of the whole file, at least as long as requested; it outlives this object.
  const std::shared_ptr<std::byte>& memory() const { return memory_; }

  /// Takes the lock of that number; false if another open file holds it.
  bool lock(int number) const;
  /// Whether another open file holds the lock of that number.
  bool is_locked_by_another(int number) const;
  /// Whether the file has no name any more.
  bool is_removed() const;

 private:
  SharedFile(int descriptor, std::shared_ptr<std::byte> memory);

  int descriptor_;
  std::shared_ptr<std::byte> memory_;
  std::filesystem::path path_;  ///< given by publish(), or empty
};

}  // namespace stepforge
