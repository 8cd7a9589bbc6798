// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/installation.h"

#include <dlfcn.h>

#include "stepforge/base/format.h"

namespace stepforge {

std::filesystem::path library_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&library_folder), &info);
  return std::filesystem::weakly_canonical(info.dli_fname).parent_path();
}

std::filesystem::path device_library(std::string_view kind) {
  return library_folder() / format("libstepforge_{}.so", kind);
}

}  // namespace stepforge
