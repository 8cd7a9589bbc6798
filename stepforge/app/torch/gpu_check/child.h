// SPDX-License-Identifier: Apache-2.0
// Other programs, run to their end.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepforge::gpu_check {

struct ChildResult {
  int exit_code = 0;   ///< 128 + signal number if a signal ended it
  std::string output;  ///< of both streams, in the order of writing
};

/// The program of this name in PATH; empty if there is none.
std::filesystem::path find_program(const std::string& name);

/// Runs it without input; `log` gets its output. Throws Error if it cannot be started.
ChildResult run_child(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                      const std::filesystem::path& log);

/// The last line that is not empty; "" if there is none.
std::string last_line(const std::string& text);

}  // namespace stepforge::gpu_check
