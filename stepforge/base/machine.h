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
  /// "" if unknown.
  std::string model = {};
  /// Hardware threads listed by the kernel, and distinct cores among them (equal if the kernel lists no
  /// cores).
  int threads = 0;
  int cores = 0;
  /// The instruction sets that matter for kernels, oldest first: sse4_2, avx, avx2, fma, f16c, avx512f,
  /// avx512_bf16, amx_bf16; on Arm asimd, sve, bf16.
  std::vector<std::string> instruction_sets;
};

/// Whether products of bf16 matrices are computed in bf16. Elsewhere they are computed in fp32, or emulated.
bool has_bf16_products(const CpuFacts& cpu);

/// The widest vector instructions of fp32: "AVX-512", "AVX2", "NEON" or "SSE".
std::string vector_instructions(const CpuFacts& cpu);

/// From the text of /proc/cpuinfo.
CpuFacts parse_cpuinfo(std::string_view text);

struct MemoryFacts {
  /// Bytes that this process may use, 0 if unknown: the container's limit if that is lower.
  int64_t total = 0;
  int64_t available = 0;
  /// Bytes that are left of the address space of this process, if that is limited (RLIMIT_AS, `ulimit -v`).
  std::optional<int64_t> address_space = {};
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
  /// The number of cores that this process may run on.
  int usable_threads = 0;
};

/// Never throws; facts that cannot be read stay empty.
MachineFacts read_machine_facts();

/// Whether the driver of NVIDIA's GPUs is here, on Linux or in WSL.
bool has_gpu_driver();

/// Peak resident set size of this process in bytes.
int64_t peak_resident_bytes();

/// Free bytes in the file system of `folder` or, if it does not exist, of its nearest existing parent.
/// nullopt if they cannot be read.
std::optional<int64_t> free_disk_bytes(const std::filesystem::path& folder);

/// The path of the library with that file name that is mapped into this process, "" if there is none.
std::filesystem::path mapped_library(std::string_view file_name);

}  // namespace stepforge
