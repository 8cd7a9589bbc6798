// SPDX-License-Identifier: Apache-2.0
// stepforge doctor: is this machine fit for training, and what to do if it is not.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace stepforge {

struct DoctorOptions {
  /// Where libstepforge_torch.so is expected; empty: torch_half_path().
  std::filesystem::path torch_library;
  /// Empty: "stepforge" in XDG_CACHE_HOME or ~/.cache.
  std::filesystem::path cache_folder;
  /// Where runs are written.
  std::filesystem::path run_folder = ".";
  /// Loads the torch library and returns "" or the loader's message. May be empty: then loading is not tried.
  std::function<std::string(const std::filesystem::path& library)> load_torch_half;
};

/// Prints a table of checks with remedies. Returns 1 if a check failed, else 0.
int doctor_command(const DoctorOptions& options);

}  // namespace stepforge
