// stepforge version: what this program is and what it was built for.
#pragma once

#include <string>

namespace stepforge {

struct BuildInfo {
  std::string version;
  /// Of the source; "unknown" outside of a git checkout.
  std::string commit;
  std::string compiler;
  /// The libtorch that the torch half was built for; "" in a build without it.
  std::string torch_version;
};

BuildInfo build_info();

/// Prints build_info, returns 0.
int version_command();

}  // namespace stepforge
