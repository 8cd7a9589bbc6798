// SPDX-License-Identifier: Apache-2.0
// Commands and their options.
#pragma once

namespace stepforge {

/// Runs the command that `argv` names and returns the exit code. Throws Error; UsageError for an argument that
/// is not understood.
int run_command_line(int argc, const char* const* argv);

}  // namespace stepforge
