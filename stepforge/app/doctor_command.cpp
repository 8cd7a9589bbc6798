// SPDX-License-Identifier: Apache-2.0
// `stepforge doctor` and `stepforge version`.
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <system_error>
#include <vector>

#include "stepforge/app/commands.h"
#include "stepforge/app/doctor_checks.h"
#include "stepforge/app/torch_library.h"
#include "stepforge/base/cache_dir.h"
#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"
#include "stepforge/base/log.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/version.h"
#include "stepforge/config/load.h"
#include "stepforge/config/presets.h"
#include "stepforge/metrics/console.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/step/memory.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* variable) {
  const char* value =
      std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): the environment is never written
  return value == nullptr ? "" : value;
}

/// The memory of every preset on one rank.
std::vector<PresetMemory> preset_memory() {
  std::vector<PresetMemory> presets;
  for (const EmbeddedFile& preset : embedded_presets()) {
    const std::string name(preset.name);
    Config config = load_config({}, std::vector<std::string>{"preset=" + name}).config;
    config.model.vocab_size = planned_vocabulary(config);
    const MemoryAccount memory = account(write_train_step(plan_job(config)));
    presets.push_back({name, memory.peak_of_one_memory()});
  }
  return presets;
}

TorchLibrary check_loading() {
  TorchLibrary found;
  found.library = torch_library_path();
  found.exists = fs::exists(found.library);
  if (found.exists) found.failure = try_torch_library(found.library);
  return found;
}

/// After the torch library was loaded, so that the plug-in finds its libtorch.
GpuFacts gpu_facts() {
  GpuFacts gpu{.driver = has_gpu_driver(), .plugin = device_library("cuda"), .failure = {}, .stand_ins = {}};
  const fs::path libtorch = mapped_library("libtorch_cpu.so");
  if (fs::exists(gpu.plugin) && !libtorch.empty()) {
    gpu.failure.emplace();
    load_device_library("cuda", *gpu.failure);
    gpu.stand_ins = stand_ins_in(libtorch.parent_path());
  }
  return gpu;
}

}  // namespace

int doctor_command(const fs::path& run_folder) {
  const MachineFacts machine = read_machine_facts();
  const fs::path cache = cache_dir();
  const TorchLibrary torch = check_loading();
  const std::vector<HealthCheck> checks = {
      check_kernel(machine),
      check_processor(machine),
      check_bf16(machine),
      check_gpu(gpu_facts()),
      check_memory(machine),
      check_presets(machine, preset_memory()),
      check_disk("runs", fs::absolute(run_folder).lexically_normal(), free_disk_bytes(run_folder)),
      check_disk("cache", cache, free_disk_bytes(cache)),
      check_cache_folder(cache),
      check_torch_library(torch),
      check_libtorch(mapped_library("libtorch_cpu.so"), std::string(built_for_torch())),
      check_terminal(stdout_is_terminal(), locale_is_utf8(), environment("TERM")),
  };
  const Health worst = worst_of(checks);
  std::cout << health_table(checks, stdout_is_terminal());
  std::cout << (worst == Health::ok ? "All checks passed.\n"
                : worst == Health::warning
                    ? "Stepforge runs here; see the warnings.\n"
                    : "Stepforge cannot train here yet; the lines with -> show the remedies.\n");
  return worst == Health::failure ? 1 : 0;
}

int version_command() {
  std::cout << format("stepforge {}\ncommit    {}\ncompiler  {}\nlibtorch  {}\n", version(), commit(),
                      compiler(), built_for_torch().empty() ? "none" : built_for_torch());
  return 0;
}

}  // namespace stepforge
