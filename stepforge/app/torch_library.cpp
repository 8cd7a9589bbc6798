// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch_library.h"

#include <cstdlib>

#include <dlfcn.h>

#include "stepforge/base/error.h"
#include "stepforge/base/installation.h"

namespace stepforge {

namespace {

/// Libraries read these when they load. OpenMP: spinning for ever starves other processes; not spinning at
/// all costs speed. c10d: its record of calls is not safe for ranks that are threads.
void prepare_libraries() {
  setenv("GOMP_SPINCOUNT", "20000", /*overwrite=*/0);
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
}

TorchEntry load(const std::filesystem::path& library, std::string& failure) {
  prepare_libraries();
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* symbol = handle != nullptr ? dlsym(handle, torch_entry_name) : nullptr;
  if (symbol == nullptr) failure = dlerror();
  return reinterpret_cast<TorchEntry>(symbol);
}

}  // namespace

std::filesystem::path torch_half_path() {
  return library_folder() / "libstepforge_torch.so";
}

std::string try_torch_half(const std::filesystem::path& library) {
  std::string failure;
  load(library, failure);
  return failure;
}

int run_with_torch(const TorchCommand& command) {
  std::string failure;
  const TorchEntry entry = load(torch_half_path(), failure);
  if (entry == nullptr) {
    throw Error(format(
        "the part that needs libtorch cannot be loaded: {}; run `stepforge doctor`, or scripts/setup.sh and "
        "build again",
        failure));
  }
  return entry(command);
}

}  // namespace stepforge
