// SPDX-License-Identifier: Apache-2.0
// The folder for files that the program can create again.
#pragma once

#include <filesystem>

namespace stepforge {

/// "stepforge" in XDG_CACHE_HOME, or in ~/.cache if that is not set to an absolute path; without HOME, in the
/// current folder's .cache.
std::filesystem::path cache_dir();

}  // namespace stepforge
