// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/doctor_checks.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t size_of_files(const fs::path& folder) {
  std::error_code failure;
  int64_t bytes = 0;
  constexpr auto options = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(folder, options, failure);
       !failure && entry != fs::recursive_directory_iterator(); entry.increment(failure)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored) && !entry->is_symlink(ignored)) {
      const std::uintmax_t size = entry->file_size(ignored);
      if (!ignored) bytes += static_cast<int64_t>(size);
    }
  }
  return bytes;
}

fs::path nearest_existing(fs::path path) {
  std::error_code failure;
  path = fs::absolute(path, failure);
  while (!fs::exists(path, failure) && path.has_relative_path()) path = path.parent_path();
  return path;
}

}  // namespace

HealthCheck check_kernel(const MachineFacts& machine) {
  HealthCheck check{Health::ok, "system", format("{} on {}", machine.kernel, machine.host), ""};
  if (!machine.kernel.ends_with("x86_64")) {
    check.health = Health::warning;
    check.remedy = "Stepforge is tested on x86-64 Linux only";
  }
  return check;
}

HealthCheck check_processor(const MachineFacts& machine) {
  const CpuFacts& cpu = machine.cpu;
  HealthCheck check{Health::ok, "processor", "", ""};
  check.finding =
      format("{}, {} cores, {} threads, {} usable here ({})", cpu.model.empty() ? "unknown model" : cpu.model,
             cpu.cores, cpu.threads, machine.usable_threads, join(cpu.instruction_sets, " "));
  if (!has(cpu.instruction_sets, "avx2") && !has(cpu.instruction_sets, "asimd")) {
    check.health = Health::warning;
    check.remedy =
        "without AVX2 training is several times slower; use a processor made after 2013, or let the virtual "
        "machine pass the host's instruction sets through";
  } else if (machine.usable_threads < cpu.cores) {
    check.health = Health::warning;
    check.remedy =
        "this process may use only a part of the processor; check taskset, the container or the batch system";
  }
  return check;
}

HealthCheck check_bf16(const MachineFacts& machine) {
  const std::vector<std::string>& sets = machine.cpu.instruction_sets;
  std::string finding =
      "emulated (no AVX2): train with precision.compute = \"fp32\" here, which is several times faster";
  if (has(sets, "amx_bf16"))
    finding =
        "products of bf16 matrices are computed in tiles (AMX): precision.compute = \"bf16\" trains fastest";
  else if (has_bf16_products(machine.cpu))
    finding = "products of bf16 matrices are computed by the processor, two numbers at a time";
  else if (has(sets, "avx2"))
    finding =
        "products are computed in fp32 (no AVX512_BF16 or AMX), a little slower than with precision.compute = \"fp32\"";
  return {Health::ok, "bf16", finding, ""};
}

HealthCheck check_gpu(const GpuFacts& gpu) {
  std::error_code none;
  const bool plugin = std::filesystem::exists(gpu.plugin, none);
  const bool fails = gpu.failure && !gpu.failure->empty();
  HealthCheck check{Health::ok, "gpu", "", ""};
  if (!gpu.driver) check.finding = "no driver: training computes on the processor";
  if (!plugin && gpu.driver) {
    check.finding =
        format("a driver, but no plug-in {}: training computes on the processor", gpu.plugin.string());
    check.remedy = "`make cuda` builds the plug-in where nvcc is found";
  } else if (fails) {
    check.finding =
        format("{}; the plug-in cannot be loaded: {}",
               gpu.driver ? "a driver, but training computes on the processor" : check.finding, *gpu.failure);
    check.remedy = kCudaLibrariesRemedy;
  } else if (plugin) {
    check.finding = gpu.driver ? R"(a driver and the plug-in: training.device = "auto" takes a GPU)"
                               : check.finding + "; the plug-in for GPUs is there";
    if (!gpu.failure) check.finding += " (its libraries were not tried)";
    if (gpu.failure && !gpu.driver) check.finding += ", with its libraries";
    if (!gpu.stand_ins.empty())
      check.finding +=
          format("; stand-ins for {}, which training does not call (`scripts/setup.sh cuda-full`)",
                 join(gpu.stand_ins, ", "));
  }
  if (!check.remedy.empty() && gpu.driver) check.health = Health::warning;
  return check;
}

std::vector<std::string> stand_ins_in(const fs::path& libraries) {
  std::vector<std::string> names;
  std::ifstream list(libraries / "stand-ins.txt");
  for (std::string name; std::getline(list, name);) names.push_back(name);
  return names;
}

HealthCheck check_memory(const MachineFacts& machine) {
  const MemoryFacts& memory = machine.memory;
  if (memory.total <= 0) return {Health::warning, "memory", "unknown", "/proc/meminfo cannot be read"};
  HealthCheck check{Health::ok, "memory",
                    format("{} free of {}", human_bytes(memory.available), human_bytes(memory.total)), ""};
  if (memory.available < kGibibyte) {
    check.health = Health::warning;
    check.remedy =
        "the demo model needs about 1 GiB; close other programs, or run stepforge plan to see how "
        "much a model needs";
  }
  return check;
}

HealthCheck check_presets(const MachineFacts& machine, std::vector<PresetMemory> presets) {
  constexpr size_t kMaxShown = 4;
  std::sort(presets.begin(), presets.end(),
            [](const PresetMemory& a, const PresetMemory& b) { return a.bytes < b.bytes; });
  std::vector<std::string> fitting;
  std::vector<std::string> others;
  for (const PresetMemory& preset : presets) {
    auto& list = preset.bytes <= machine.memory.available ? fitting : others;
    list.push_back(format("{} ({})", preset.preset, human_bytes(preset.bytes)));
  }
  if (fitting.size() > kMaxShown) fitting.erase(fitting.begin(), fitting.end() - kMaxShown);
  if (others.size() > kMaxShown) others.resize(kMaxShown);
  HealthCheck check{Health::ok, "presets", "", ""};
  check.finding =
      fitting.empty() ? "none fits into the free memory" : "largest that fit: " + join(fitting, ", ");
  if (!others.empty()) check.finding += "; do not fit: " + join(others, ", ");
  if (fitting.empty()) {
    check.health = Health::warning;
    check.remedy = "close other programs, or use a machine with more memory";
  } else if (!others.empty()) {
    check.finding +=
        format("; see stepforge plan --preset {}", others.front().substr(0, others.front().find(' ')));
  }
  return check;
}

HealthCheck check_disk(std::string_view purpose, const fs::path& folder, std::optional<int64_t> free_bytes) {
  HealthCheck check{Health::ok, format("disk ({})", purpose), "", ""};
  if (!free_bytes) {
    check.health = Health::warning;
    check.finding = format("free space at {} unknown", folder.string());
    check.remedy = "check that the folder can be reached";
    return check;
  }
  check.finding = format("{} free at {}", human_bytes(*free_bytes), folder.string());
  if (*free_bytes < kGibibyte / 4) {
    check.health = Health::failure;
    check.remedy = "make room: a checkpoint holds 12 bytes per parameter";
  } else if (*free_bytes < 5 * kGibibyte) {
    check.health = Health::warning;
    check.remedy = "enough for small models; a checkpoint holds 12 bytes per parameter";
  }
  return check;
}

HealthCheck check_cache_folder(const fs::path& folder) {
  const fs::path existing = nearest_existing(folder);
  HealthCheck check{Health::ok, "cache folder", "", ""};
  if (!fs::is_directory(existing) || access(existing.c_str(), W_OK | X_OK) != 0) {
    check.health = Health::failure;
    check.finding = format("{} cannot be written", folder.string());
    check.remedy =
        format("correct the permissions of {}, or set XDG_CACHE_HOME to another folder", existing.string());
    return check;
  }
  check.finding = fs::exists(folder) ? format("{}, {}", folder.string(), human_bytes(size_of_files(folder)))
                                     : format("{}, created when needed", folder.string());
  return check;
}

HealthCheck check_terminal(bool is_terminal, bool utf8, std::string_view terminal_type) {
  HealthCheck check{Health::ok, "terminal", "", ""};
  check.finding = format(
      "{}, {}",
      is_terminal ? format("a terminal ({})", terminal_type) : std::string("not a terminal: plain lines"),
      utf8 ? "UTF-8" : "no UTF-8");
  if (!utf8) {
    check.health = Health::warning;
    check.remedy = "generated text may look garbled; set LANG=C.UTF-8";
  }
  return check;
}

HealthCheck check_torch_library(const TorchLibrary& torch) {
  HealthCheck check{Health::ok, "torch library", torch.library.string(), ""};
  if (!torch.exists) {
    check.health = Health::failure;
    check.finding = format("{} is missing: train, eval and generate cannot run", torch.library.string());
    check.remedy = "build it with make (it belongs beside libstepforge_core.so)";
  } else if (torch.failure && !torch.failure->empty()) {
    check.health = Health::failure;
    check.finding = format("cannot be loaded: {}", *torch.failure);
    check.remedy =
        "set STEPFORGE_TORCH to the 'torch' folder of a PyTorch of the version that `stepforge version` prints; or "
        "run scripts/setup.sh, then make";
  } else if (!torch.failure) {
    check.finding += " (not tried)";
  }
  return check;
}

HealthCheck check_libtorch(const fs::path& libtorch, std::string_view built_for) {
  if (libtorch.empty()) {
    return {Health::warning, "libtorch", "not loaded",
            "see the torch library above; scripts/setup.sh installs the libtorch that Stepforge is made for"};
  }
  const std::string version = torch_version(libtorch.parent_path().parent_path());
  HealthCheck check{
      Health::ok, "libtorch",
      format("{} at {}", version.empty() ? "unknown version" : version, libtorch.parent_path().string()), ""};
  if (!version.empty() && !built_for.empty() && minor_version(version) != minor_version(built_for)) {
    check.health = Health::failure;
    check.remedy =
        format("this program was built for {}; build it again, or set STEPFORGE_TORCH to a PyTorch {}",
               built_for, minor_version(built_for));
  }
  return check;
}

std::string health_table(const std::vector<HealthCheck>& checks, bool colour) {
  struct Verdict {
    std::string_view label;
    std::string_view colour;
  };
  const auto verdict_of = [](Health health) -> Verdict {
    switch (health) {
      case Health::ok:
        return {"ok  ", "\x1b[32m"};
      case Health::warning:
        return {"warn", "\x1b[33m"};
      case Health::failure:
        return {"FAIL", "\x1b[31m"};
    }
    return {};
  };
  size_t widest = 0;
  for (const HealthCheck& check : checks) widest = std::max(widest, check.subject.size());
  std::string table;
  for (const HealthCheck& check : checks) {
    const Verdict verdict = verdict_of(check.health);
    table += colour ? format("{}{}\x1b[0m", verdict.colour, verdict.label) : std::string(verdict.label);
    table += format("  {:<{}}  {}\n", check.subject, widest, check.finding);
    if (!check.remedy.empty()) table += format("      {:<{}}  -> {}\n", "", widest, check.remedy);
  }
  return table;
}

Health worst_of(const std::vector<HealthCheck>& checks) {
  Health worst = Health::ok;
  for (const HealthCheck& check : checks) worst = std::max(worst, check.health);
  return worst;
}

}  // namespace stepforge
