// SPDX-License-Identifier: Apache-2.0
// Parses the command line and runs a command.
#pragma once

namespace stepforge {

/// Runs the command that `argv` names and returns the exit code. Throws Error; UsageError for an invalid
/// argument.
int run_command_line(int argc, const char* const* argv);

}  // namespace stepforge
