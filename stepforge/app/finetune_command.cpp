// SPDX-License-Identifier: Apache-2.0
// `stepforge finetune`: chooses settings, prints them, and trains.
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "stepforge/app/commands.h"
#include "stepforge/app/finetune_choices.h"
#include "stepforge/app/torch_library.h"
#include "stepforge/base/device_name.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/installation.h"
#include "stepforge/base/log.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/shell_word.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/utf8.h"
#include "stepforge/config/apply.h"
#include "stepforge/launch/rank_environment.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Whether training takes a GPU, as training.device says.
bool takes_gpu(const FinetuneOptions& options) {
  std::string name = TrainingConfig{}.device;
  for (const Override& own : read_overrides(options.overrides))
    if (own.name == "training.device") name = own.text;
  const auto device = parse_device_name(name);
  if (!device) return false;  // refused with the other fields
  std::error_code none;
  const bool there = has_gpu_driver() && fs::exists(device_library("cuda"), none);
  return device->kind == "cuda" || (device->kind == "auto" && there);
}

MemoryBudget memory_for(const FinetuneOptions& options) {
  const bool gpu = takes_gpu(options);
  if (!options.memory.empty()) return {parse_bytes(options.memory), "are given by --memory", !gpu};
  if (gpu)
    throw UsageError(
        "the memory of a GPU is not known before training; name it with --memory, such as 80GiB");
  return free_memory(read_machine_facts().memory, 1, "are free on this machine");
}

/// Throws UsageError unless the run's folder is new, or holds nothing but an earlier file of this command.
void require_new_run(const fs::path& run, const fs::path& file) {
  std::error_code none;
  if (!fs::exists(run / "config.toml", none) && !fs::exists(run / "run.json", none)) return;
  const std::string advice =
      fs::exists(file, none) ? format("`stepforge train {}` continues it; ", shell_word(file.string())) : "";
  throw UsageError(format("{} is a run already: {}start another with run_dir=FOLDER", run.string(), advice));
}

void print_choices(const FinetunePlan& plan, const std::string& toml, const fs::path& file) {
  std::cout << format("# {}\n{}\n", file.string(), printable(toml));
  size_t width = 0;
  for (const FinetuneChoice& choice : plan.choices)
    if (!choice.reason.empty()) width = std::max(width, choice.key.size());
  std::cout << "Why:\n";
  for (const FinetuneChoice& choice : plan.choices)
    if (!choice.reason.empty())
      std::cout << format("  {:<{}}  {}\n", choice.key, width, printable(choice.reason));
  std::cout << format("  {:<{}}  {}\n", "memory", width, plan.memory);
  for (const std::string& warning : plan.warnings) std::cout << "Note: " << printable(warning) << "\n";
  std::cout << std::endl;
}

/// What can be done with the run.
void print_next(const FinetunePlan& plan, const fs::path& file) {
  const Config& config = plan.loaded.config;
  const fs::path run = config.run_dir;
  const std::string best = shell_word(best_checkpoint(run).string());
  fs::path exported = run;
  exported += "-model";
  std::cout << "\nNext:\n";
  if (config.model.scores())
    std::cout << format("  stepforge eval {}\n", best);
  else
    std::cout << (plan.has_template ? format("  stepforge chat {}\n", best)
                                    : format("  stepforge generate {} --prompt \"...\"\n", best));
  std::cout << format("  stepforge export {} {}{}\n", best, shell_word(exported.string()),
                      config.adapter.enabled() ? " --merge" : "");
  std::cout << format("  stepforge train {} {}\n", shell_word(file.string()),
                      config.training.steps > 0 ? format("training.steps={}", 2 * config.training.steps)
                                                : format("training.epochs={}", 2 * config.training.epochs));
}

}  // namespace

int finetune_command(const FinetuneOptions& options, const std::shared_ptr<Registry>& registry) {
  if (const int ranks = discover_ranks(process_environment()).world_size; ranks > 1 && !options.write_only) {
    throw UsageError(
        format("finetune chooses for one rank, and there are {}: write the file with --write-only, and "
               "start `train` with it on all",
               ranks));
  }
  Logger log(LogLevel::info, stderr_is_terminal());
  FinetunePlan plan = plan_finetuning(options, memory_for(options), registry, log);
  const fs::path run = plan.loaded.config.run_dir;
  const fs::path file = run / "finetune.toml";
  require_new_run(run, file);
  const std::string toml = finetune_toml(plan.loaded);
  print_choices(plan, toml, file);
  fs::create_directories(run);
  write_file_atomic(file, toml);
  if (options.write_only) {
    std::cout << format("Train with: stepforge train {}\n", shell_word(file.string()));
    return 0;
  }
  TrainOptions train;
  train.config = load_config(file, {}, ConfigUse::train, settings_from_model, registry);
  const int status = run_with_torch(train, registry);
  if (status == 0) {
    print_next(plan, file);
  } else if (status == static_cast<int>(ExitCode::interrupted)) {
    std::cout << format("Continue with: stepforge train {}\n", shell_word(file.string()));
  }
  return status;
}

}  // namespace stepforge
