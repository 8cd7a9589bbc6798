// SPDX-License-Identifier: Apache-2.0
// The location of this build's files, in a build folder, an installed package and an unpacked archive; and of the libtorch that
// an archive uses.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace stepforge {

/// The folder of libstepforge_core.so and of the libraries that are loaded on demand.
std::filesystem::path library_folder();

/// The plug-in of a kind of device, such as "cuda"; it need not exist.
std::filesystem::path device_library(std::string_view kind);

/// Loads the plug-in of a kind of device, after libtorch; the handle of dlopen. Null, and the loader's message in `failure`, if it or a
/// library that it needs cannot be loaded. Plug-ins for CUDA take libtorch_cuda from the folder of the libtorch that is loaded.
void* load_device_library(std::string_view kind, std::string& failure);

/// What helps if the plug-in for CUDA cannot be loaded.
inline constexpr const char* kCudaLibrariesRemedy =
    "`scripts/setup.sh cuda` fetches the libraries that libtorch needs; a PyTorch of your own needs to be one for CUDA 13";

/// "2.11" of "2.11.0+cu130".
std::string_view minor_version(std::string_view version);

/// "2.11.0+cu130", from version.py in the folder `torch` of a PyTorch; "" if it is not there.
std::string torch_version(const std::filesystem::path& torch);

/// Where a PyTorch is looked for, as this process has it. Each may be empty.
struct TorchSearch {
  std::string built_for;        ///< "2.11.0"
  std::string given;            ///< STEPFORGE_TORCH
  std::string virtual_env;      ///< VIRTUAL_ENV
  std::string path;             ///< PATH, with the folders of programs
  std::filesystem::path home;   ///< of the user
  std::filesystem::path cache;  ///< cache_dir()
};
TorchSearch torch_search();

/// The folder `torch` of a PyTorch of the minor version that this program was built for: `given`, or that of the virtual environment, of
/// the python3 on PATH, of the user, or that of scripts/setup.sh. No Python runs. Throws UsageError if there is none, which names where it
/// was looked for and the remedy.
std::filesystem::path find_torch(const TorchSearch& search);

}  // namespace stepforge
