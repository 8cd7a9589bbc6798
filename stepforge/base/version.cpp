// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/version.h"

namespace stepforge {

// The macros are set for this file alone by cmake/Rooms.cmake, so a new commit recompiles nothing else.
std::string_view version() {
  return STEPFORGE_VERSION;
}
std::string_view commit() {
  return STEPFORGE_COMMIT;
}
std::string_view compiler() {
  return STEPFORGE_COMPILER;
}
std::string_view built_for_torch() {
  return STEPFORGE_TORCH_VERSION;
}

}  // namespace stepforge
