// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/plugin_loader.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>

#include <dlfcn.h>

#include "stepforge/base/plugin.h"
#include "stepforge/base/shared_library.h"

namespace stepforge {

namespace {

constexpr const char* kBuildSection = ".stepforge_plugin";
constexpr const char* kEntryName = "stepforge_plugin";

std::string_view text_of(const char* text, std::size_t capacity) {
  return {text, strnlen(text, capacity)};
}

std::string build_text(const PluginBuild& build) {
  return format("Stepforge {} (headers {:.8}), compiler {}{}", text_of(build.version, sizeof build.version),
                text_of(build.headers, sizeof build.headers), text_of(build.compiler, sizeof build.compiler),
                build.cxx11_abi != 0 ? "" : ", the old ABI of strings");
}

/// Throws Error if the file is not a plug-in for this program. Runs none of its code.
void check_file(const std::filesystem::path& path) {
  const auto section = library_section(FileReader(path), kBuildSection);
  if (!section) {
    throw Error(
        format("{} is not a plug-in: it has no section {}; define its entry function with STEPFORGE_PLUGIN",
               path.string(), kBuildSection));
  }
  PluginBuild build{};
  std::memcpy(&build, section->data(), std::min(section->size(), sizeof build));
  if (section->size() == sizeof build && std::memcmp(&build, &kPluginBuild, sizeof build) == 0) return;
  throw Error(
      format("{} was built for another version: for {}, but this is {}; "
             "build it again with the headers of this program",
             path.string(), build_text(build), build_text(kPluginBuild)));
}

/// The last message of the dynamic loader.
std::string loader_message() {
  const char* message = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is of the thread
  return message != nullptr ? message : "unknown failure";
}

}  // namespace

bool is_loaded(const std::filesystem::path& file, const Registry& registry) {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::canonical(file, failure);
  const auto& loaded = registry.plugins();
  return !failure && std::find(loaded.begin(), loaded.end(), path) != loaded.end();
}

void load_plugin(const std::filesystem::path& file, const std::string& named_at, Registry& registry) {
  if (is_loaded(file, registry)) return;
  const auto refuse = [&](const std::string& reason) {
    throw UsageError(format("{}: plug-in {}: {}", named_at, file.string(), reason));
  };
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::canonical(file, failure);
  if (failure) refuse(format("{}; give the path of a shared library", failure.message()));
  try {
    check_file(path);
  } catch (const Error& error) {
    throw UsageError(format("{}: plug-in {}", named_at, error.what()));
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) refuse(format("cannot be loaded: {}", loader_message()));
  void* entry = dlsym(handle, kEntryName);
  if (entry == nullptr)
    refuse(format("has no symbol {}; define its entry function with STEPFORGE_PLUGIN", kEntryName));
  try {
    registry.add_plugin(path, reinterpret_cast<void (*)(Registry&)>(entry));
  } catch (const std::exception& error) {
    refuse(format("its entry function failed: {}", error.what()));
  } catch (...) {
    refuse("its entry function threw something other than a std::exception; throw a stepforge::Error");
  }
}

}  // namespace stepforge
