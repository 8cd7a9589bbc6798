// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

namespace stepforge::testing {

std::filesystem::path source_dir() {
  return STEPFORGE_SOURCE_DIR;
}
std::filesystem::path binary_dir() {
  return STEPFORGE_BINARY_DIR;
}

}  // namespace stepforge::testing
