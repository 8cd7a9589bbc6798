// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/machine.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Files in /proc report size 0, so they are read to their end.
std::string read_kernel_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// "key : value" lines in order.
std::vector<std::pair<std::string_view, std::string_view>> key_value_lines(std::string_view text) {
  std::vector<std::pair<std::string_view, std::string_view>> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos) {
      lines.emplace_back(trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
    }
  }
  return lines;
}

std::optional<int64_t> leading_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || value < 0) return std::nullopt;
  return value;
}

std::vector<std::string> known_instruction_sets(std::string_view flags) {
  constexpr std::array<std::string_view, 11> kKnown = {
      "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16"};
  const std::string padded = format(" {} ", flags);
  std::vector<std::string> found;
  for (const std::string_view name : kKnown) {
    if (padded.find(format(" {} ", name)) != std::string::npos) found.emplace_back(name);
  }
  return found;
}

bool has_any(const CpuFacts& cpu, std::initializer_list<std::string_view> sets) {
  return std::any_of(cpu.instruction_sets.begin(), cpu.instruction_sets.end(), [&](std::string_view set) {
    return std::find(sets.begin(), sets.end(), set) != sets.end();
  });
}

}  // namespace

bool has_bf16_products(const CpuFacts& cpu) {
  return has_any(cpu, {"avx512_bf16", "amx_bf16", "bf16"});
}

std::string vector_instructions(const CpuFacts& cpu) {
  if (has_any(cpu, {"avx512f"})) return "AVX-512";
  if (has_any(cpu, {"avx2"})) return "AVX2";
  return has_any(cpu, {"asimd"}) ? "NEON" : "SSE";
}

CpuFacts parse_cpuinfo(std::string_view text) {
  CpuFacts facts;
  std::set<std::pair<std::string_view, std::string_view>> cores;
  std::string_view socket;
  for (const auto& [key, value] : key_value_lines(text)) {
    if (key == "processor") {
      ++facts.threads;
    } else if (key == "model name" && facts.model.empty()) {
      facts.model = value;
    } else if (key == "physical id") {
      socket = value;
    } else if (key == "core id") {
      cores.emplace(socket, value);
    } else if ((key == "flags" || key == "Features") && facts.instruction_sets.empty()) {
      facts.instruction_sets = known_instruction_sets(value);
    }
  }
  facts.cores = cores.empty() ? facts.threads : static_cast<int>(cores.size());
  return facts;
}

MemoryFacts parse_meminfo(std::string_view text) {
  MemoryFacts facts;
  for (const auto& [key, value] : key_value_lines(text)) {
    const int64_t kibibytes = std::min(leading_number(value).value_or(0), INT64_MAX / 1024);
    if (key == "MemTotal") facts.total = kibibytes * 1024;
    if (key == "MemAvailable") facts.available = kibibytes * 1024;
  }
  return facts;
}

std::optional<int64_t> parse_memory_limit(std::string_view text) {
  return leading_number(trimmed(text));
}

namespace {

/// The address space that this process uses.
int64_t mapped_bytes() {
  const auto pages = leading_number(read_kernel_file("/proc/self/statm"));
  return pages.value_or(0) * sysconf(_SC_PAGESIZE);
}

}  // namespace

MachineFacts read_machine_facts() {
  MachineFacts facts;
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) facts.host = host.data();
  utsname system{};
  if (uname(&system) == 0) facts.kernel = format("{} {} {}", system.sysname, system.release, system.machine);
  facts.cpu = parse_cpuinfo(read_kernel_file("/proc/cpuinfo"));
  facts.memory = parse_meminfo(read_kernel_file("/proc/meminfo"));
  const auto limit = parse_memory_limit(read_kernel_file("/sys/fs/cgroup/memory.max"));
  if (limit && *limit < facts.memory.total) {
    const auto used = parse_memory_limit(read_kernel_file("/sys/fs/cgroup/memory.current")).value_or(0);
    facts.memory.total = *limit;
    facts.memory.available = std::clamp<int64_t>(*limit - used, 0, facts.memory.available);
  }
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const auto most = static_cast<int64_t>(std::min<rlim_t>(address_space.rlim_cur, INT64_MAX));
    facts.memory.address_space = std::max<int64_t>(0, most - mapped_bytes());
  }
  facts.usable_threads = hardware_threads();
  return facts;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

std::optional<int64_t> free_disk_bytes(const fs::path& folder) {
  std::error_code failure;
  fs::path existing = fs::absolute(folder, failure);
  while (!failure && !fs::exists(existing, failure) && existing.has_relative_path())
    existing = existing.parent_path();
  const fs::space_info space = fs::space(existing, failure);
  if (failure) return std::nullopt;
  return static_cast<int64_t>(std::min<std::uintmax_t>(space.available, INT64_MAX));
}

fs::path mapped_library(std::string_view file_name) {
  std::istringstream maps(read_kernel_file("/proc/self/maps"));
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const fs::path path = line.substr(slash);
    if (path.filename() == file_name) return path;
  }
  return {};
}

bool has_gpu_driver() {
  std::error_code none;
  return std::filesystem::exists("/dev/nvidiactl", none) || std::filesystem::exists("/dev/dxg", none);
}

}  // namespace stepforge
