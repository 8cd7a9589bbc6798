// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/version_command.h"

#include <iostream>

#include "stepforge/base/format.h"
#include "stepforge/base/version.h"

namespace stepforge {

int version_command() {
  std::cout << format("stepforge {}\ncommit    {}\ncompiler  {}\nlibtorch  {}\n", version(), commit(),
                      compiler(), built_for_torch().empty() ? "none" : built_for_torch());
  return 0;
}

}  // namespace stepforge
