// SPDX-License-Identifier: Apache-2.0
// `stepforge plan`.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/app/commands.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/utf8.h"
#include "stepforge/launch/rank_environment.h"
#include "stepforge/plan/calls_text.h"
#include "stepforge/plan/job_checks.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/layout_text.h"
#include "stepforge/plan/machine_file.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/plan/pipeline_forecast.h"
#include "stepforge/plan/planned_machine.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/picture.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/plan_text.h"
#include "stepforge/step/run_timeline.h"
#include "stepforge/step/simulate.h"
#include "stepforge/step/simulate_pipeline.h"

namespace stepforge {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// A configuration that is checked as `train` does, with the size of its vocabulary.
struct CheckedConfig {
  Config config;
  std::vector<std::string> notes;  ///< lines about the configuration
  PlannedMachine machine;
};

CheckedConfig checked_config(const ConfigArgs& args, const PlanOptions& options) {
  LoadedConfig loaded = args.load(ConfigUse::plan);
  CheckedConfig checked;
  checked.machine = plan_machine(loaded, options.world_size);
  const int ranks = checked.machine.ranks;
  if (ranks > kMaxRanks)
    throw UsageError(format("machine.hosts = {}: these are {} ranks; a job has at most {}",
                            loaded.config.machine.hosts, ranks, kMaxRanks));
  if (options.rank >= ranks) {
    throw UsageError(format("--rank {} does not exist in a job of {} ranks; the last one is {}", options.rank,
                            ranks, ranks - 1));
  }
  const auto tokenizer = reading_input([&] { return known_tokenizer(loaded.config); });
  if (tokenizer != nullptr) check_vocabulary(loaded, tokenizer->vocab_size());
  loaded.config.model.vocab_size = planned_vocabulary(loaded.config, tokenizer.get());
  check_job(loaded, plan_model(loaded.config));
  if (loaded.missing.empty()) reading_input([&] { check_sources(loaded.config, tokenizer.get()); });
  if (loaded.config.training.steps > 0) {
    const std::string warning = schedule_warning(loaded.config, loaded.config.training.steps);
    if (!warning.empty()) checked.notes.push_back(warning);
  }
  const auto& spec = checked.machine.spec;
  const int on_host = spec && spec->host.devices < ranks ? 0 : ranks;
  for (std::string& note : unread_notes(loaded, {ranks, on_host})) checked.notes.push_back(std::move(note));
  if (loaded.config.comm.backend == CommBackend::nccl)
    checked.notes.emplace_back("comm.backend = \"nccl\": its plug-in and GPUs are not checked here");
  if (!loaded.missing.empty()) {
    checked.notes.emplace_back("`train` needs more than this configuration says:");
    for (const std::string& missing : loaded.missing) checked.notes.push_back("  " + missing);
  }
  checked.config = std::move(loaded.config);
  return checked;
}

/// --machine and --hosts are other names of fields, as --preset is.
ConfigArgs with_machine(ConfigArgs args, const PlanOptions& options) {
  if (!options.machine.empty()) args.overrides.push_back("machine.name=" + options.machine);
  if (options.hosts > 0) args.overrides.push_back(format("machine.hosts={}", options.hosts));
  return args;
}

MachineModel rates_of(const CheckedConfig& checked, const PlanOptions& options) {
  MachineModel machine = checked.machine.model(checked.config.precision.compute);
  machine.cores = options.cores;
  if (!options.calibrate.empty()) machine.measured = MeasuredCosts::from_trace(options.calibrate);
  return machine;
}

/// What the rates of the machine are worth, for the reader of a predicted time.
std::string rates_note(const PlanOptions& options, const PlannedMachine& machine) {
  if (!options.calibrate.empty()) return "";
  if (machine.spec) {
    return "These are the peaks of its data sheet or file: a step that runs reaches a part of them and takes longer; "
           "--calibrate takes measured times";
  }
  return "These rates are an assumption and belong to no real machine: --machine h100-sxm plans for a real one "
         "(--machine list prints all), and --calibrate takes measured times";
}

MemoryBudget memory_budget(const PlanOptions& options, const PlannedMachine& machine) {
  if (!options.memory.empty()) return {parse_bytes(options.memory), "are given by --memory", false};
  if (machine.spec) return machine.memory();
  return free_memory(read_machine_facts().memory, 1, "are free on this machine");
}

/// The verdict for the rank of the pipeline that needs most memory: if it fits, the job does.
std::string verdict_text(const Job& job, const ProvedStep& step, const MemoryBudget& budget) {
  const MemoryAccount memory = account(element(step.stages, step.largest()));
  std::string text = memory_verdict(job.at(step.largest()), memory, budget);
  if (job.config.parallelism.expert_parallel_degree > 1)
    text += "\n" + uneven_load_verdict(job, memory, plan_largest_memory(job), budget);
  return text;
}

/// The files that the options name.
void write_files(const PlanOptions& options, const Job& job, const ProvedStep& step, const PipelineRun& run,
                 const MachineModel& machine) {
  const Schedule& schedule = job.pipeline.schedule;
  if (!options.trace.empty()) {
    write_file_atomic(options.trace,
                      trace_json(step.stages, "predicted with " + machine_text(machine), run.times));
    std::cout << format("\nTrace of the predicted step: {} (open it in ui.perfetto.dev)\n",
                        options.trace.string());
  }
  if (!options.schedule.empty()) {
    write_file_atomic(options.schedule, schedule_csv(schedule));
    std::cout << format("\nPipeline schedule: {} (parallelism.pipeline_parallel_schedule_csv reads it)\n",
                        options.schedule.string());
  }
  if (!options.picture.empty()) {
    const std::string title = schedule_title(job.config.parallelism);
    write_file_atomic(options.picture,
                      schedule_svg(schedule, timeline_of(step.stages, run, schedule), title));
    std::cout << format("\nPicture of the pipeline: {}\n", options.picture.string());
  }
}

int compare_command(const PlanOptions& options, const CheckedConfig& checked, const MachineModel& machine) {
  if (!options.trace.empty() || !options.picture.empty())
    throw UsageError("--trace and --picture show one schedule; leave --compare out");
  const bool limited = !options.memory.empty() || checked.machine.spec;
  const MemoryBudget budget = limited ? memory_budget(options, checked.machine) : MemoryBudget{kUnlimited};
  const ScheduleComparison comparison =
      compare_schedules(checked.config, {options.rank, checked.machine.ranks}, machine, budget.bytes);
  std::cout << comparison.table << format("\nPredicted on ranks of {}\n", machine_text(machine));
  if (options.schedule.empty()) return 0;
  if (comparison.fastest.empty())
    throw UsageError(
        format("--schedule: no schedule fits into the {} that {}", human_bytes(budget.bytes), budget.source));
  write_file_atomic(options.schedule, schedule_csv(comparison.schedule));
  std::cout << format("\nFastest schedule, {}: {} (parallelism.pipeline_parallel_schedule_csv reads it)\n",
                      comparison.fastest, options.schedule.string());
  return 0;
}

}  // namespace

int plan_command(const ConfigArgs& args, const PlanOptions& options) {
  if (options.machine == "list") {
    std::cout << machines_text();
    return 0;
  }
  const CheckedConfig checked = checked_config(with_machine(args, options), options);
  const Config& config = checked.config;
  const RankId rank{options.rank, checked.machine.ranks};
  const MachineModel machine = rates_of(checked, options);
  if (options.compare) {
    const int status = compare_command(options, checked, machine);
    for (const std::string& note : checked.notes) std::cout << printable(note) << "\n";
    return status;
  }
  const bool staged = has_stages(config);
  if (!staged && (!options.schedule.empty() || !options.picture.empty())) {
    throw UsageError(
        "--schedule and --picture: the job has no pipeline; "
        "set parallelism.pipeline_parallel_degree to a number above 1");
  }
  const Job job = plan_job(config, rank);
  const ProvedStep step = prove_train_step(job);
  const PipelineRun run = simulate_pipeline(step.stages, machine);
  PlanText text;
  text.proof = step.proof;
  text.title = args.file ? args.file->string() : (config.preset.empty() ? "defaults" : config.preset);
  text.seq_len = config.training.seq_len;
  text.tokens_per_step = job.batch.tokens_per_step();
  text.verdict = verdict_text(job, step, memory_budget(options, checked.machine));
  for (const std::string& note : checked.notes) text.verdict += "\n" + printable(note);
  text.machine = machine;
  text.rates_note = rates_note(options, checked.machine);
  text.times = element(run.times, step.member);
  if (staged) text.pipeline = pipeline_text(job, step, run);
  if (options.program || options.all)
    text.table = TableOptions{.all_micro_batches = options.all, .all_repetitions = options.all};
  if (options.calls) std::cout << calls_text(job.part, step.program().blocks) << "\n";
  if (options.layout) std::cout << layout_text(job) << "\n";
  std::cout << render_plan(job.whole, job.part, step.program(), text);
  write_files(options, job, step, run, machine);
  return 0;
}

}  // namespace stepforge
