// SPDX-License-Identifier: Apache-2.0
// Memory of the simulated devices: one file in memory, mapped twice. Tensors have addresses of the first mapping, which the
// host may not touch; the work of streams uses the second. Pinned memory is mapped twice as well, so that the host's rights to
// it can be taken away while a stream uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace stepforge::sim {

/// An interval of addresses that tensors have.
struct Range {
  const std::byte* begin = nullptr;
  int64_t bytes = 0;
  const std::byte* end() const { return begin + bytes; }
};

inline constexpr int64_t kPage = 4096;  ///< bytes

enum class HostRights : uint8_t { none, read, read_and_write };

/// Address space that is backed by memory only where it is touched.
class MemoryMap {
 public:
  /// Device memory may never be touched by the host. Throws Error if the system refuses the address space.
  MemoryMap(int64_t bytes, HostRights rights);
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  bool contains(const void* address) const;
  int64_t offset(const void* address) const { return static_cast<const std::byte*>(address) - host_; }
  std::byte* at(int64_t offset) const { return host_ + offset; }
  /// Where the work of a stream finds what tensors have at `address`.
  std::byte* for_streams(const void* address) const { return streams_ + offset(address); }
  /// Sets what the host may do with whole pages.
  void allow(Range pages, HostRights rights) const;

 private:
  int64_t bytes_;
  std::byte* host_ = nullptr;
  std::byte* streams_ = nullptr;
};

/// From now on the process ends with kTouchedDeviceMemory and a message on standard error, with the stack of the thread, if the
/// host touches `device` or the part of `pinned` that a stream uses. Both must live until the process ends.
void catch_host_accesses(const MemoryMap& device, const MemoryMap& pinned);
inline constexpr int kTouchedDeviceMemory = 97;

/// Instead of ending the process, let the host have the page and report the access: for tests that plant such faults.
void report_host_accesses(bool report);
/// What the host touched since the last call, "" if nothing.
std::string host_access();

}  // namespace stepforge::sim
