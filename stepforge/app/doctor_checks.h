// SPDX-License-Identifier: Apache-2.0
// The checks of `stepforge doctor`: whether Stepforge can run on this machine, and what to change if not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/machine.h"

namespace stepforge {

enum class Health { ok, warning, failure };

struct HealthCheck {
  Health health = Health::ok;
  /// "memory", "disk (cache)".
  std::string subject;
  std::string finding;
  /// What to do; "" if the check passed.
  std::string remedy;
};

HealthCheck check_kernel(const MachineFacts& machine);
HealthCheck check_processor(const MachineFacts& machine);
/// Whether precision.compute = "bf16" is fast here.
HealthCheck check_bf16(const MachineFacts& machine);

/// What training on GPUs needs.
struct GpuFacts {
  bool driver = false;  ///< has_gpu_driver()
  std::filesystem::path plugin;
  /// The loader's message about the plug-in and the libraries that it needs; "" if they were loaded; nullopt if that was not tried.
  std::optional<std::string> failure;
  /// Libraries of CUDA that scripts/cuda_stubs.py has made stand-ins for.
  std::vector<std::string> stand_ins;
};
/// Which device training.device = "auto" takes, and why.
HealthCheck check_gpu(const GpuFacts& gpu);

/// The names in the list that scripts/cuda_stubs.py leaves in the folder of libtorch's libraries.
std::vector<std::string> stand_ins_in(const std::filesystem::path& libraries);

HealthCheck check_memory(const MachineFacts& machine);

/// What the training step of a preset needs on one rank.
struct PresetMemory {
  std::string preset;
  int64_t bytes = 0;
};
/// Which presets fit into the available memory.
HealthCheck check_presets(const MachineFacts& machine, std::vector<PresetMemory> presets);

/// The free space for `purpose` ("runs", "cache"); `free_bytes`: nullopt if it could not be read.
HealthCheck check_disk(std::string_view purpose, const std::filesystem::path& folder,
                       std::optional<int64_t> free_bytes);
/// Whether `folder` (or the nearest existing parent) can be written, and how much it holds.
HealthCheck check_cache_folder(const std::filesystem::path& folder);
HealthCheck check_terminal(bool is_terminal, bool utf8, std::string_view terminal_type);

/// The result of loading libstepforge_torch.so.
struct TorchLibrary {
  std::filesystem::path library;
  bool exists = false;
  /// The loader's message; "" if it was loaded; nullopt if that was not tried.
  std::optional<std::string> failure;
};
HealthCheck check_torch_library(const TorchLibrary& torch);

/// `libtorch`: the path of the loaded libtorch_cpu.so, "" if none. Its version is read from version.py in
/// the parent of its folder.
/// `built_for`: "2.11.0", "" if unknown; another minor version is a failure, since libtorch has no stable ABI
/// across them.
HealthCheck check_libtorch(const std::filesystem::path& libtorch, std::string_view built_for);

/// One line per check, followed by the remedy. `colour`: ANSI colours for the verdicts.
std::string health_table(const std::vector<HealthCheck>& checks, bool colour);

Health worst_of(const std::vector<HealthCheck>& checks);

}  // namespace stepforge
