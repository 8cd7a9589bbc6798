// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/plugin.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>

#include <dlfcn.h>

namespace stepforge {

namespace {

std::string_view text_of(const char* text, std::size_t capacity) {
  return {text, strnlen(text, capacity)};
}

std::string build_text(const PluginBuild& build) {
  return format("Stepforge {}, compiler {}{}", text_of(build.version, sizeof build.version),
                text_of(build.compiler, sizeof build.compiler),
                build.cxx11_abi != 0 ? "" : ", the old ABI of strings");
}

/// What the loader said last.
std::string loader_message() {
  const char* message = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is of the thread
  return message != nullptr ? message : "unknown failure";
}

}  // namespace

void load_plugin(const std::filesystem::path& file, const std::string& named_at, Registry& registry) {
  const auto refuse = [&](const std::string& reason) {
    throw UsageError(format("{}: plug-in {}: {}", named_at, file.string(), reason));
  };
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::canonical(file, failure);
  if (failure) refuse(format("{}; give the path of a shared library", failure.message()));
  const auto& loaded = registry.plugins();
  if (std::find(loaded.begin(), loaded.end(), path) != loaded.end()) return;

  // Its functions are bound only when the builds are known to agree: those of another version may be missing here.
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) refuse(format("cannot be loaded: {}", loader_message()));
  const auto* build = static_cast<const PluginBuild*>(dlsym(handle, kPluginBuildName));
  void* entry = dlsym(handle, kPluginEntryName);
  if (build == nullptr || entry == nullptr) {
    refuse(format("has no symbol {}; define its entry function with STEPFORGE_PLUGIN",
                  build == nullptr ? kPluginBuildName : kPluginEntryName));
  }
  if (build_text(*build) != build_text(kPluginBuild)) {
    refuse(
        format("was built for another version: for {}, but this is {}; build it again with the headers of "
               "this program",
               build_text(*build), build_text(kPluginBuild)));
  }
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
    refuse(format("cannot be loaded: {}", loader_message()));
  try {
    registry.add_plugin(path, reinterpret_cast<void (*)(Registry&)>(entry));
  } catch (const std::exception& error) {
    refuse(format("its entry function failed: {}", error.what()));
  }
}

}  // namespace stepforge
