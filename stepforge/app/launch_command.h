// `stepforge launch`: starts this program, or another, once for each rank of this host.
#pragma once

#include "stepforge/launch/launcher.h"

namespace stepforge {

/// `options.command`: "train" and what belongs to it, or a program's path and its words. Returns the exit
/// code. Throws UsageError for wrong words, Error if the ranks cannot be started.
int launch_command(LaunchOptions options);

}  // namespace stepforge
