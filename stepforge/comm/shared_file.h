// SPDX-License-Identifier: Apache-2.0
// Files of shared memory in a folder of this user: what arenas between processes are stored in.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace stepforge {

/// /dev/shm/stepforge-<user id>: only this user may look into it, so others can neither guess nor take the
/// names in it.
std::filesystem::path shared_folder();

/// An open file of shared memory and its mapping. Its bytes can be locked: a lock ends with the process that
/// holds it, however it ends, and works across containers that share the memory.
class SharedFile {
 public:
  /// A new file of `bytes` zeros without a name, whose lock 0 this object holds. Throws Error if there is not
  /// enough room, or if the folder belongs to another user or is open to others.
  static std::unique_ptr<SharedFile> create(std::size_t bytes);
  /// nullptr if no file of at least that many bytes has this name. Throws Error if it belongs to another
  /// user.
  static std::unique_ptr<SharedFile> open(const std::string& name, std::size_t least_bytes);
  /// Removes the names whose lock 0 is free: their processes were killed.
  static void remove_dead();

  /// Ends the name as unpublish() does.
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// Gives the file a name, by which other processes find it; false if another file has that name.
  bool publish(const std::string& name);
  /// Takes the name away; processes that have opened the file keep it.
  void unpublish();

  /// The mapping, at least as long as asked for; it outlives this object.
  const std::shared_ptr<std::byte>& memory() const { return memory_; }

  /// False if another holds the lock of that number.
  bool lock(int number) const;
  /// Whether another open file holds the lock of that number.
  bool is_locked_by_another(int number) const;
  /// Whether the file's name is gone.
  bool is_removed() const;

 private:
  SharedFile(int descriptor, std::shared_ptr<std::byte> memory);

  int descriptor_;
  std::shared_ptr<std::byte> memory_;
  std::string name_;  ///< "" if it has none that this object gave it
};

}  // namespace stepforge
