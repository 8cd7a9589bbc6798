#include "app/version_command.h"

#include <iostream>

#include "base/format.h"

namespace stepforge {

BuildInfo build_info() {
  BuildInfo info;
#ifdef STEPFORGE_VERSION
  info.version = STEPFORGE_VERSION;
#else
  info.version = "0.1.0";
#endif
#ifdef STEPFORGE_COMMIT
  info.commit = STEPFORGE_COMMIT;
#else
  info.commit = "unknown";
#endif
#ifdef __clang__
  info.compiler = format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  info.compiler = format("g++ {}", __VERSION__);
#endif
#ifdef STEPFORGE_TORCH_VERSION
  info.torch_version = STEPFORGE_TORCH_VERSION;
#endif
  return info;
}

int version_command() {
  const BuildInfo info = build_info();
  std::cout << format("stepforge {}\n", info.version) << format("commit    {}\n", info.commit)
            << format("compiler  {}\n", info.compiler)
            << format("libtorch  {}\n", info.torch_version.empty() ? "none" : info.torch_version);
  return 0;
}

}  // namespace stepforge
