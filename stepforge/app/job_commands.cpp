// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/job_commands.h"

#include <iostream>
#include <memory>

#include "stepforge/app/plan_command.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/machine.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/job_plan.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

namespace {

std::unique_ptr<Tokenizer> load_or_bytes(const std::string& name) {
  return name == "bytes" ? make_byte_tokenizer() : load_tokenizer(name);
}

}  // namespace

int train_command(const JobWords& words, const TrainWords& what) {
  TorchCommand command;
  command.kind = TorchCommand::Kind::train;
  command.dry_run_ranks = what.dry_run_ranks;
  command.trace = what.trace;
  command.config = load_config(words.file, words.overrides, ConfigUse::train);
  if (command.config.config.debug.print_config) std::cout << config_toml_with_places(command.config);
  Logger log(LogLevel::info, stderr_is_terminal());
  const InterruptWatcher interrupts(
      [&log] { log.warning("interrupted: finishing the step and saving; once more ends at once"); });
  command.log = &log;
  command.interrupts = &interrupts;
  return run_with_torch(command);
}

namespace {
int run_with_log(TorchCommand command) {
  Logger log(LogLevel::info, stderr_is_terminal());
  command.log = &log;
  return run_with_torch(command);
}
}  // namespace

int eval_command(const EvalOptions& options) {
  TorchCommand command;
  command.kind = TorchCommand::Kind::evaluate;
  command.evaluate = options;
  return run_with_log(std::move(command));
}

int generate_command(const GenerateOptions& options) {
  TorchCommand command;
  command.kind = TorchCommand::Kind::generate;
  command.generate = options;
  return run_with_log(std::move(command));
}

int export_command(const ExportOptions& options) {
  TorchCommand command;
  command.kind = TorchCommand::Kind::export_model;
  command.export_options = options;
  return run_with_log(std::move(command));
}

int import_command(const ImportOptions& options) {
  TorchCommand command;
  command.kind = TorchCommand::Kind::import_model;
  command.import_options = options;
  return run_with_log(std::move(command));
}

int data_build_command(const DataBuildOptions& options, const std::string& tokenizer) {
  return data_build(options, *load_or_bytes(tokenizer));
}

int data_show_command(const JobWords& words, const DataShowWords& rows) {
  const LoadedConfig loaded = load_config(words.file, words.overrides, ConfigUse::train);
  Logger log(LogLevel::info, stderr_is_terminal());
  const auto tokenizer = job_tokenizer(loaded.config, log);
  DataShowOptions options;
  options.plan = data_plan(loaded.config, planned_vocabulary(loaded.config));
  options.validation = rows.validation;
  options.first_row = rows.first_row;
  options.rows = rows.rows;
  options.max_tokens = rows.max_tokens;
  options.colour = stdout_is_terminal();
  return data_show(options, *tokenizer);
}

int plan_run_command(const JobWords& words, const PlanWords& what) {
  LoadedConfig loaded = load_config(words.file, words.overrides);
  Config& config = loaded.config;
  config.model.vocab_size = planned_vocabulary(config);
  const ModelSpec model = plan_model(config);
  if (what.rank >= what.world_size) {
    throw UsageError(format("--rank {} is outside a world of {} ranks; the last is {}", what.rank,
                            what.world_size, what.world_size - 1));
  }
  const RankId place{what.rank, what.world_size};
  const auto data_ranks = static_cast<int>(data_parallel_of(config, place).loss_ranks.size());
  const ProvedStep step = prove_train_step(config, model, place);
  PlanText text;
  text.proof = step.proof;
  text.title = words.file ? words.file->string() : (config.preset.empty() ? "defaults" : config.preset);
  text.seq_len = config.training.seq_len;
  text.tokens_per_step = plan_batch(config.training, data_ranks).tokens_per_step();
  const MemoryBudget budget =
      what.memory.empty() ? MemoryBudget{read_machine_facts().memory.available, "are free on this machine"}
                          : MemoryBudget{parse_bytes(what.memory), "are given by --memory", false};
  text.verdict = memory_verdict(config, model, place, account(step.program), budget);
  if (!what.machine.empty()) text.machine = parse_machine(what.machine);
  text.table.all_micro_batches = what.all;
  text.table.all_repetitions = what.all;
  return print_plan(model, step.program, text, what.trace, std::cout);
}

int config_show_command(const JobWords& words) {
  std::cout << config_toml_with_places(load_config(words.file, words.overrides));
  return 0;
}

int config_schema_command(const std::string& section, const std::string& format_name) {
  if (format_name == "markdown") {
    std::cout << schema_markdown();
  } else if (format_name == "json") {
    std::cout << schema_json().dump(2) << '\n';
  } else {
    std::cout << schema_help(section);
  }
  return 0;
}

}  // namespace stepforge
