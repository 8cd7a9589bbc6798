// SPDX-License-Identifier: Apache-2.0
// `stepforge launch`: starts this program or another once for each rank of this host.
#pragma once

#include "stepforge/launch/launcher.h"

namespace stepforge {

/// `options.command`: "train" and its arguments, or a program's path and its arguments. Returns the exit code.
/// Throws UsageError for a wrong command, Error if the ranks cannot be started.
int launch_command(LaunchOptions options);

}  // namespace stepforge
