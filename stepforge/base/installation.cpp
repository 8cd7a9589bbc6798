// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/installation.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include <dlfcn.h>

#include "stepforge/base/cache_dir.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/version.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): no thread sets variables
  return value == nullptr ? "" : value;
}

/// An installation of Python: the folder above bin and lib.
struct Prefix {
  fs::path folder;
  std::string python;  ///< "python3.11", whose packages come first; "" if unknown
};

/// The installations to look into, the first first.
std::vector<Prefix> prefixes(const TorchSearch& search) {
  std::vector<Prefix> found;
  const auto add = [&](const fs::path& folder, const std::string& python) {
    const bool known =
        std::ranges::any_of(found, [&](const Prefix& other) { return other.folder == folder; });
    if (!known) found.push_back({folder, python});
  };
  if (!search.virtual_env.empty()) add(search.virtual_env, "");
  std::istringstream folders(search.path);
  std::string name;
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code none;
    const fs::path python = fs::path(folder) / "python3";
    if (folder.empty() || !fs::is_regular_file(python, none)) continue;
    const fs::path real = fs::canonical(python, none);
    name = real.filename();
    add(fs::path(folder).parent_path(), name);
    add(fs::path(folder).parent_path() / "local", name);
    add(real.parent_path().parent_path(), name);
    break;
  }
  if (!search.home.empty()) add(search.home / ".local", name);
  return found;
}

/// The folders of PyTorch in an installation.
std::vector<fs::path> torch_folders(const Prefix& prefix) {
  std::vector<fs::path> found;
  for (const char* library : {"lib", "lib64"}) {
    std::vector<fs::path> pythons;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(prefix.folder / library, none))
      if (entry.path().filename().native().starts_with("python3")) pythons.push_back(entry.path());
    std::ranges::sort(pythons, {}, [&](const fs::path& python) {
      return std::pair(python.filename() != prefix.python, python);
    });
    for (const fs::path& python : pythons)
      for (const char* packages : {"site-packages", "dist-packages"})
        if (const fs::path torch = python / packages / "torch"; fs::exists(torch / "version.py", none))
          found.push_back(torch);
  }
  return found;
}

}  // namespace

fs::path library_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&library_folder), &info);
  return fs::weakly_canonical(info.dli_fname).parent_path();
}

fs::path device_library(std::string_view kind) {
  return library_folder() / format("libstepforge_{}.so", kind);
}

void* load_device_library(std::string_view kind, std::string& failure) {
  // Lazily, so that it loads where libraries are missing that it needs for some calls only.
  constexpr int kMode = RTLD_LAZY | RTLD_LOCAL;
  const fs::path libtorch = mapped_library("libtorch_cpu.so");
  void* handle = nullptr;
  // By its path, since the plug-in of an archive does not know the folder. Then the loader finds it by name.
  if (kind != "cuda" || libtorch.empty() ||
      dlopen((libtorch.parent_path() / "libtorch_cuda.so").c_str(), kMode) != nullptr)
    handle = dlopen(device_library(kind).c_str(), kMode);
  if (handle == nullptr) failure = dlerror();
  return handle;
}

std::string_view minor_version(std::string_view version) {
  const size_t first = version.find('.');
  const size_t second = first == std::string_view::npos ? first : version.find('.', first + 1);
  return version.substr(0, second);
}

std::string torch_version(const fs::path& torch) {
  std::ifstream stream(torch / "version.py");
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("__version__")) continue;
    const size_t begin = line.find_first_of("'\"");
    const size_t end = line.find_last_of("'\"");
    if (begin != std::string::npos && end > begin) return line.substr(begin + 1, end - begin - 1);
  }
  return "";
}

TorchSearch torch_search() {
  return {.built_for = std::string(built_for_torch()),
          .given = environment("STEPFORGE_TORCH"),
          .virtual_env = environment("VIRTUAL_ENV"),
          .path = environment("PATH"),
          .home = environment("HOME"),
          .cache = cache_dir()};
}

fs::path find_torch(const TorchSearch& search) {
  const std::string wanted(minor_version(search.built_for));
  const auto is_wanted = [&](const fs::path& torch) { return minor_version(torch_version(torch)) == wanted; };
  if (!search.given.empty()) {
    const std::string version = torch_version(search.given);
    if (version.empty())
      throw UsageError(
          format("STEPFORGE_TORCH={} has no version.py: set it to the 'torch' folder in the "
                 "site-packages of a PyTorch {}",
                 search.given, wanted));
    if (minor_version(version) != wanted)
      throw UsageError(format("STEPFORGE_TORCH={} is PyTorch {}, but this program was built for {}",
                              search.given, version, wanted));
    return search.given;
  }
  std::vector<std::string> looked_at;
  for (const Prefix& prefix : prefixes(search)) {
    looked_at.push_back(prefix.folder);
    for (const fs::path& torch : torch_folders(prefix)) {
      if (is_wanted(torch)) return torch;
      looked_at.push_back(format("{} (it is {})", torch.string(), torch_version(torch)));
    }
  }
  const fs::path own = search.cache / format("torch-{}", search.built_for) / "torch";
  if (is_wanted(own)) return own;
  looked_at.push_back(own);
  throw UsageError(
      format("no PyTorch {0} was found. Looked at: {1}. Install it (`pip install 'torch=={0}.*'`), or set "
             "STEPFORGE_TORCH to the 'torch' folder in its site-packages",
             wanted, join(looked_at, ", ")));
}

}  // namespace stepforge
