// Where this build's files lie, in a build folder as in an installed package.
#pragma once

#include <filesystem>

namespace stepforge {

/// The folder of libstepforge_core.so: the libraries that are loaded on demand lie beside it.
std::filesystem::path library_folder();

}  // namespace stepforge
