// SPDX-License-Identifier: Apache-2.0
// The location of this build's files, in a build folder and in an installed package.
#pragma once

#include <filesystem>
#include <string_view>

namespace stepforge {

/// The folder of libstepforge_core.so and of the libraries that are loaded on demand.
std::filesystem::path library_folder();

/// The plug-in of a kind of device, such as "cuda"; it need not exist.
std::filesystem::path device_library(std::string_view kind);

}  // namespace stepforge
