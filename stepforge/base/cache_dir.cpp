// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/cache_dir.h"

#include <cstdlib>

namespace stepforge {

namespace {

std::filesystem::path folder_in(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): no thread sets variables
  return value == nullptr ? "" : value;
}

}  // namespace

std::filesystem::path cache_dir() {
  const std::filesystem::path cache = folder_in("XDG_CACHE_HOME");
  return (cache.is_absolute() ? cache : folder_in("HOME") / ".cache") / "stepforge";
}

}  // namespace stepforge
