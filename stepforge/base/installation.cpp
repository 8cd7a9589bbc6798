// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/installation.h"

#include <dlfcn.h>

namespace stepforge {

std::filesystem::path library_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&library_folder), &info);
  return std::filesystem::weakly_canonical(info.dli_fname).parent_path();
}

}  // namespace stepforge
