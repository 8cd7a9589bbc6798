// SPDX-License-Identifier: Apache-2.0
// The folders of the sources and of the built programs. Only paths.cpp is compiled with these paths, so that
// all clones share the compiler cache.
#pragma once

#include <filesystem>

namespace stepforge::testing {

std::filesystem::path source_dir();
/// The build folder that the running test belongs to.
std::filesystem::path binary_dir();

}  // namespace stepforge::testing
