// Files of shared memory: what arenas between processes lie in.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace stepforge {

/// An open file in the host's shared memory, and its mapping. Its bytes can be locked: a lock ends with the
/// process that holds it, however it ends, and across containers that share the memory.
class SharedFile {
 public:
  /// A new file of `bytes` zeros, of this user only. nullptr if the name exists. Throws Error if there is no
  /// room.
  static std::unique_ptr<SharedFile> create(const std::string& name, std::size_t bytes);
  /// nullptr if there is no such file, or it has not (yet) that many bytes.
  static std::unique_ptr<SharedFile> open(const std::string& name, std::size_t bytes);
  static void remove(const std::string& name);

  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// The mapping; lives on when the file is closed.
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
};

}  // namespace stepforge
