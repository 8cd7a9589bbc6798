// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch_library.h"

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <utility>

#include <dlfcn.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"
#include "stepforge/base/utf8.h"
#include "stepforge/config/schema_docs.h"

namespace stepforge {

namespace {

void* open_globally(const std::filesystem::path& library, std::string& failure) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) failure = dlerror();
  return handle;
}

/// Whether the loader has not found libtorch. The library names this one first.
bool is_without_libtorch(const std::string& failure) {
  return failure.starts_with("libtorch_cpu.so: ");
}

/// The library names libtorch, and knows the folder of the one that it was built with. STEPFORGE_TORCH, or an archive that was unpacked
/// elsewhere, has another one: it is loaded first by its path, and then the loader finds it by its name.
TorchEntry load(const std::filesystem::path& library, std::string& failure) {
  const TorchSearch search = torch_search();
  void* handle = search.given.empty() ? open_globally(library, failure) : nullptr;
  if (handle == nullptr && (!search.given.empty() || is_without_libtorch(failure)) &&
      open_globally(find_torch(search) / "lib" / "libtorch_cpu.so", failure) != nullptr)
    handle = open_globally(library, failure);
  void* symbol = handle != nullptr ? dlsym(handle, kTorchEntryName) : nullptr;
  if (handle != nullptr && symbol == nullptr) failure = dlerror();
  return reinterpret_cast<TorchEntry>(symbol);
}

}  // namespace

/// - OpenMP: endless spinning starves other processes, no spinning costs speed.
/// - c10d: its flight recorder is not safe for ranks that are threads.
void prepare_torch_environment() {
  setenv("GOMP_SPINCOUNT", "20000", /*overwrite=*/0);
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
}

std::filesystem::path torch_library_path() {
  return library_folder() / "libstepforge_torch.so";
}

std::string try_torch_library(const std::filesystem::path& library) {
  std::string failure;
  try {
    if (load(library, failure) != nullptr) return "";
  } catch (const UsageError& none) {
    return none.what();
  }
  return failure;
}

int run_with_torch(const TorchRequest& request, std::shared_ptr<const Registry> plugins) {
  Logger log(LogLevel::info, stderr_is_terminal());
  // Before the library is loaded, which may start threads.
  std::optional<InterruptWatcher> interrupts;
  if (const auto* train = std::get_if<TrainOptions>(&request)) {
    if (train->config.config.debug.print_config)
      std::cout << printable(config_toml_with_places(train->config));
    interrupts.emplace([&log](int signal) {
      if (is_notice_of_end(signal)) {
        log.warning("SIG{} announces the end: finishing this step and saving", sigabbrev_np(signal));
      } else {
        log.warning("interrupted: finishing this step and saving (press Ctrl-C again to quit now)");
      }
    });
  }
  std::string failure;
  const TorchEntry entry = load(torch_library_path(), failure);
  if (entry == nullptr) {
    throw Error(format(
        "the torch library cannot be loaded: {}; run `stepforge doctor`, or `make build` again", failure));
  }
  return entry(request, {log, interrupts ? &*interrupts : nullptr, std::move(plugins)});
}

}  // namespace stepforge
