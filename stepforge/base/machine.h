// SPDX-License-Identifier: Apache-2.0
// Facts about the machine that a run depends on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

struct CpuFacts {
  /// "" if the kernel does not tell.
  std::string model;
  /// Hardware threads listed by the kernel, and distinct cores among them (equal where cores are not told
  /// apart).
  int threads = 0;
  int cores = 0;
  /// Those instruction sets that kernels care about, in order of their age: sse4_2, avx, avx2, fma, f16c,
  /// avx512f, avx512_bf16, amx_bf16; on Arm asimd, sve, bf16.
  std::vector<std::string> instruction_sets;
};

/// From the text of /proc/cpuinfo.
CpuFacts parse_cpuinfo(std::string_view text);

struct MemoryFacts {
  /// Bytes, 0 if unknown. What this process may use: the container's limit if it is lower.
  int64_t total = 0;
  int64_t available = 0;
};

/// From the text of /proc/meminfo.
MemoryFacts parse_meminfo(std::string_view text);

/// The number in a control group's memory.max; nullopt for "max" or anything that is not a number.
std::optional<int64_t> parse_memory_limit(std::string_view text);

struct MachineFacts {
  std::string host;
  /// "Linux 6.1.0-18-amd64 x86_64".
  std::string kernel;
  CpuFacts cpu;
  MemoryFacts memory;
  /// Threads that this process may run at once.
  int usable_threads = 0;
};

/// Never throws; what cannot be found stays empty.
MachineFacts read_machine_facts();

/// Most bytes of this process that were in memory at once.
int64_t peak_resident_bytes();

/// Bytes that can be written in the file system that holds `folder` or, if it does not exist, its nearest
/// parent that does.
std::optional<int64_t> free_disk_bytes(const std::filesystem::path& folder);

/// Where a library of that file name is mapped into this process, "" if it is not.
std::filesystem::path mapped_library(std::string_view file_name);

}  // namespace stepforge
