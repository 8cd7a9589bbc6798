// SPDX-License-Identifier: Apache-2.0
// Where the sources and the built programs are. Only paths.cpp is compiled with these paths, so that a compiler cache
// serves the tests of every clone.
#pragma once

#include <filesystem>

namespace stepforge::testing {

std::filesystem::path source_dir();
/// The build folder that the running test belongs to.
std::filesystem::path binary_dir();

}  // namespace stepforge::testing
