// SPDX-License-Identifier: Apache-2.0
// Sub-commands and their options.
#pragma once

namespace stepforge {

/// Runs the command that `argv` names and returns the exit code. Throws Error; a wrong word is reported here,
/// with exit code 2.
int run_command_line(int argc, const char* const* argv);

}  // namespace stepforge
