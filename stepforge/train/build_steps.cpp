#include "stepforge/train/build_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/version.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/metrics/console.h"
#include "stepforge/metrics/jsonl.h"
#include "stepforge/models/model_registry.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/train/agreement.h"
#include "stepforge/train/builtin_callbacks.h"

namespace stepforge {

namespace {

void build_ranks(Trainer& trainer) {
  if (trainer.world() == nullptr) {
    trainer.groups = std::make_shared<const DataGroups>();
    return;
  }
  World& world = *trainer.world();
  trainer.place = {world.rank(), world.size()};
  const Config& config = trainer.config;
  auto groups = std::make_shared<const DataGroups>(world, data_parallel_of(config, trainer.place));
  require_agreement(groups->data(), "the program", format("{} {}", version(), commit()));
  require_agreement(groups->data(), "the configuration", config_toml(config, /*with_comments=*/false));
  trainer.groups = std::move(groups);
}

void build_run_folder(Trainer& trainer) {
  const std::filesystem::path run_dir = trainer.config.run_dir;
  main_first(trainer.groups->data(), [&] {
    if (trainer.is_main()) {
      trainer.run_folder = std::make_unique<RunFolder>(run_dir, trainer.log);
      trainer.log.add_file(trainer.run_folder->log_file());
      return;
    }
    std::filesystem::create_directories(run_dir / "logs");
    trainer.log.quiet_terminal();
    trainer.log.add_file(run_dir / "logs" / format("rank-{}.txt", trainer.place.rank));
  });
}

void build_threads(Trainer& trainer) {
  const auto& training = trainer.config.training;
  install_cpu_allocator();
  if (training.threads > 0) at::set_num_threads(static_cast<int>(training.threads));
}

/// Text or a tokenizer that cannot be used is refused like a wrong configuration: nothing has been allocated
/// yet.
template <typename Read>
auto reading_input(const Read& read) {
  try {
    return read();
  } catch (const FormatError& malformed) {
    throw UsageError(malformed.what());
  }
}

void build_tokenizer_step(Trainer& trainer) {
  main_first(trainer.groups->data(), [&] {
    trainer.tokenizer = reading_input([&] { return job_tokenizer(trainer.config, trainer.log); });
    // A copy: the run is evaluated and exported from its folder alone.
    if (trainer.is_main() && trainer.config.tokenizer.type != "bytes")
      trainer.tokenizer->save_pretrained(run_tokenizer_folder(trainer.config));
  });
}

void fit_vocabulary(Trainer& trainer) {
  auto& model = trainer.config.model;
  const int64_t tokens = trainer.tokenizer->vocab_size();
  if (model.vocab_size == 0) model.vocab_size = tokens;
  // A short text may yield fewer tokens than asked for; the configuration that is kept says what there is.
  auto& tokenizer = trainer.config.tokenizer;
  tokenizer.vocab_size = std::min(tokenizer.vocab_size, tokens);
  if (tokens > model.vocab_size) {
    throw UsageError(
        format("{}: model.vocab_size = {}, but the tokenizer has {} tokens; raise model.vocab_size or leave "
               "it 0",
               where(trainer.loaded, "model.vocab_size"), model.vocab_size, tokens));
  }
}

void build_data(Trainer& trainer) {
  const auto& data = trainer.config.data;
  fit_vocabulary(trainer);
  const auto report = [&](const TokenizeProgress& progress) {
    if (progress.bytes_done < progress.bytes_total) return;
    trainer.log.info("tokenized {} into {} tokens", human_bytes(progress.bytes_total),
                     with_thousands(progress.tokens));
  };
  const DataPlan plan = data_plan(trainer.config, trainer.config.model.vocab_size);
  main_first(trainer.groups->data(), [&] {
    trainer.data = reading_input([&] { return open_data(plan, trainer.tokenizer.get(), report); });
  });
  require_agreement(trainer.groups->data(), "the data", trainer.data.train->fingerprint());
  if (trainer.config.validation.freq > 0 && trainer.data.validation == nullptr) {
    throw UsageError(format(
        "{}: validation.freq = {} needs data.validation or data.validation_fraction (now {})",
        where(trainer.loaded, "validation.freq"), trainer.config.validation.freq, data.validation_fraction));
  }
}

void build_specification(Trainer& trainer) {
  const auto& training = trainer.config.training;
  trainer.model_spec = plan_model(trainer.config);
  trainer.batch = plan_batch(training, trainer.groups->data_ranks());
  const double rows = static_cast<double>(trainer.data.train->rows_per_epoch());
  trainer.steps_per_epoch =
      std::max<int64_t>(1, static_cast<int64_t>(rows / static_cast<double>(trainer.batch.rows_per_step)));
  trainer.total_steps = training.steps > 0 ? training.steps : training.epochs * trainer.steps_per_epoch;
}

/// debug.plant_nan_block names a block of the model.
void check_planted_block(const Trainer& trainer) {
  const std::string& planted = trainer.config.debug.plant_nan_block;
  std::vector<std::string> names;
  for (const auto& block : trainer.train_program.blocks) names.push_back(block.name);
  if (planted.empty() || std::find(names.begin(), names.end(), planted) != names.end()) return;
  throw UsageError(format("{}: debug.plant_nan_block = \"{}\": the model has no such block; it has: {}",
                          where(trainer.loaded, "debug.plant_nan_block"), planted, join(names, ", ")));
}

/// Says whether the step fits into the free memory. What is larger than the machine is refused before it is
/// allocated.
void check_memory(Trainer& trainer) {
  const MemoryFacts memory = read_machine_facts().memory;
  if (memory.total <= 0) return;
  trainer.memory_budget = {memory.available / trainer.local_ranks, "are free for it on this machine"};
  const std::string verdict = memory_verdict(trainer.config, trainer.model_spec, trainer.place,
                                             trainer.predicted_memory, trainer.memory_budget);
  const int64_t needed = needed_bytes(trainer.predicted_memory, trainer.memory_budget);
  if (needed > memory.total / trainer.local_ranks) throw UsageError(verdict);
  if (needed > trainer.memory_budget.bytes) {
    trainer.log.warning("{}", verdict);
  } else {
    trainer.log.info("{}", verdict);
  }
}

void build_step_program(Trainer& trainer) {
  trainer.train_program = plan_train_step(trainer.config, trainer.model_spec, trainer.place);
  check_planted_block(trainer);
  trainer.evaluation_program = plan_evaluation(trainer.config, trainer.model_spec, trainer.place);
  trainer.predicted_memory = account(trainer.train_program);
  check_memory(trainer);
}

void build_parameters(Trainer& trainer) {
  const StoreOptions options{.gather = compute_dtype(trainer.config.precision),
                             .reduce = reduce_dtype(trainer.config.precision),
                             .partition = partition_of(trainer.config.parallelism),
                             .offload = trainer.config.parallelism.fsdp_cpu_offload};
  trainer.store = std::make_unique<ModelStore>(trainer.model_spec.units, options, trainer.groups);
  trainer.store->initialize(static_cast<uint64_t>(trainer.config.training.seed));
}

void build_model(Trainer& trainer) {
  const ForwardOptions options{std::max(trainer.config.training.seq_len, generation_context(trainer.config)),
                               trainer.config.training.loss_chunk};
  trainer.model = make_model(trainer.config.model, trainer.store->lookup(), options);
}

void build_optimizer(Trainer& trainer) {
  const auto& optimizer = trainer.config.optimizer;
  if (optimizer.name != "adamw")
    throw UsageError(format("optimizer.name = \"{}\": there is adamw", optimizer.name));
  trainer.optimizer = std::make_unique<AdamW>(
      *trainer.store, resolve_param_groups(optimizer, trainer.model_spec), optimizer.eps);
  trainer.schedule = std::make_unique<LearningRateSchedule>(trainer.config.lr_scheduler, trainer.total_steps);
  if (trainer.schedule->decay_was_cut()) {
    trainer.log.warning(
        "warm-up and decay are longer than the run: the decay is cut to what the warm-up leaves");
  }
}

void build_loader(Trainer& trainer) {
  const auto& data = trainer.config.data;
  const BatchLayout layout{trainer.batch.rows_per_step, trainer.batch.rows_per_micro_batch,
                           trainer.groups->data_ranks(), trainer.groups->data_rank()};
  trainer.loader =
      std::make_unique<PrefetchLoader>(trainer.data.train, layout, std::max<int64_t>(1, data.prefetch));
}

void build_executor(Trainer& trainer) {
  trainer.executor = std::make_unique<Executor>(trainer.train_program, trainer.model, *trainer.store);
  trainer.evaluator = std::make_unique<Executor>(trainer.evaluation_program, trainer.model, *trainer.store);
  trainer.train_step =
      std::make_unique<TrainStep>(trainer.config, *trainer.executor, *trainer.store, *trainer.optimizer);
}

/// Takes over what the checkpoint holds, after saying what its configuration had otherwise.
void resume_from(Trainer& trainer, const FoundCheckpoint& found) {
  const std::filesystem::path& folder = found.path;
  const Json json = read_checkpoint_state(found);
  const ConfigChanges changes = compare_with_checkpoint(json, trainer.config);
  if (!changes.refused.empty()) {
    throw UsageError(format("the checkpoint {} belongs to another run:\n  {}", folder.string(),
                            join(changes.refused, "\n  ")));
  }
  for (const auto& change : changes.accepted) trainer.log.info("changed since the checkpoint: {}", change);
  const TrainerState state = state_from_json(json, (folder / "state.json").string());
  load_checkpoint(found, trainer.model_spec, *trainer.store, trainer.optimizer.get());
  const auto& allowed = trainer.config.checkpoint.allow_changed;
  const bool data_may_change = std::find(allowed.begin(), allowed.end(), "data") != allowed.end();
  trainer.loader->restore(state.loader, data_may_change || changes.other_rows);
  trainer.state = state;
  trainer.resumed = true;
  trainer.log.info("resumed from {} at step {}", folder.string(), state.step);
}

void resume_own(Trainer& trainer, const FoundCheckpoint& found) {
  resume_from(trainer, found);
  trainer.last_saved_step = found.step;
}

void initial_load(Trainer& trainer) {
  const auto& checkpoint = trainer.config.checkpoint;
  const std::filesystem::path path = checkpoint.initial_load_path;
  if (std::filesystem::exists(path / "manifest.json")) {
    const FoundCheckpoint found = verify_checkpoint(path, *trainer.checkpoint_ranks);
    if (!checkpoint.initial_load_model_only) return resume_from(trainer, found);
    load_checkpoint(found, trainer.model_spec, *trainer.store, nullptr);
  } else {
    import_hf(path, trainer.model_spec, *trainer.store);
  }
  trainer.log.info("weights loaded from {}", path.string());
}

/// All ranks with data; they have a communicator of their own, since they save while training goes on.
std::unique_ptr<CheckpointRanks> build_checkpoint_ranks(const Trainer& trainer) {
  if (trainer.groups->data_ranks() == 1) return std::make_unique<CheckpointRanks>();
  const std::vector<int> ranks = data_parallel_of(trainer.config, trainer.place).loss_ranks;
  return std::make_unique<CheckpointRanks>(trainer.world()->group("checkpoint", ranks),
                                           trainer.config.checkpoint.timeout);
}

void build_checkpoint(Trainer& trainer) {
  const auto& checkpoint = trainer.config.checkpoint;
  trainer.checkpoint_ranks = build_checkpoint_ranks(trainer);
  const CheckpointRanks& ranks = *trainer.checkpoint_ranks;
  if (checkpoint.enable) {
    trainer.checkpoints = std::make_unique<CheckpointWriter>(
        trainer.checkpoint_dir(), checkpoint.keep_latest_k, trainer.log, checkpoint.async, &ranks);
  }
  if (checkpoint.load_step >= 0) {
    return resume_own(trainer, checkpoint_of_step(trainer.checkpoint_dir(), checkpoint.load_step, ranks));
  }
  if (checkpoint.resume) {
    if (const auto found = newest_complete_checkpoint(trainer.checkpoint_dir(), trainer.log, ranks)) {
      return resume_own(trainer, *found);
    }
  }
  if (!checkpoint.initial_load_path.empty()) initial_load(trainer);
}

void build_metrics(Trainer& trainer) {
  const auto& metrics = trainer.config.metrics;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  sinks.push_back(std::make_unique<ConsoleSink>(trainer.log, trainer.is_main() && stderr_is_terminal()));
  if (trainer.is_main()) {
    trainer.run_folder->write_config(config_toml(trainer.config, /*with_comments=*/false));
    const auto file = trainer.run_folder->metrics_file();
    rewind_jsonl(file, trainer.state.step);
    if (metrics.enable_jsonl) sinks.push_back(std::make_unique<JsonlSink>(file, trainer.log));
  }
  trainer.metrics = std::make_unique<SinkQueue>(std::move(sinks), trainer.log);
}

}  // namespace

std::vector<Trainer::BuildStep> standard_build_steps() {
  return {{"ranks", build_ranks},
          {"run_folder", build_run_folder},
          {"threads", build_threads},
          {"tokenizer", build_tokenizer_step},
          {"data", build_data},
          {"specification", build_specification},
          {"step_program", build_step_program},
          {"parameters", build_parameters},
          {"model", build_model},
          {"optimizer", build_optimizer},
          {"loader", build_loader},
          {"executor", build_executor},
          {"checkpoint", build_checkpoint},
          {"metrics", build_metrics},
          {"callbacks", add_builtin_callbacks}};
}

}  // namespace stepforge
