// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/files.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/threads.h"
#include "stepforge/base/version.h"
#include "stepforge/catalog/loss_kinds.h"
#include "stepforge/comm/gather.h"
#include "stepforge/comm/rank0_first.h"
#include "stepforge/comm/self_test.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/dataset/whole_hash.h"
#include "stepforge/kernels/cpu/bf16_blocks.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/metrics/jsonl.h"
#include "stepforge/nn/make_model.h"
#include "stepforge/plan/job_checks.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/plan/unread_options.h"
#include "stepforge/storage/context_collectives.h"
#include "stepforge/storage/staged_communicator.h"
#include "stepforge/storage/tensor_collectives.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/text/tokenizer_files.h"
#include "stepforge/train/answer_ends.h"
#include "stepforge/train/builtin_callbacks.h"
#include "stepforge/train/callback_kinds.h"
#include "stepforge/train/equal_calls.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

/// The settings of config_toml(): "optimizer.lr" -> "0.0008".
std::map<std::string, std::string> settings_of(const std::string& toml) {
  std::map<std::string, std::string> settings;
  std::string section;
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (line.starts_with('[')) {
      section = line.substr(line.find_first_not_of('['), line.find(']') - line.find_first_not_of('[')) + ".";
    } else if (equals != std::string::npos) {
      settings[section + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return settings;
}

/// "optimizer.lr = 0.001 instead of 0.0008", for the first keys in which `other` differs.
std::string differing_settings(const std::string& toml, const std::string& other) {
  constexpr size_t kShown = 4;
  const auto left = settings_of(toml);
  const auto right = settings_of(other);
  std::vector<std::string> texts;
  const auto compare = [&](const std::string& key, const std::string& there, const std::string& here) {
    if (there != here) texts.push_back(format("{} = {} instead of {}", key, there, here));
  };
  for (const auto& [key, value] : left)
    compare(key, right.contains(key) ? right.at(key) : "its default", value);
  for (const auto& [key, value] : right) {
    if (!left.contains(key)) compare(key, value, "its default");
  }
  const size_t more = texts.size() > kShown ? texts.size() - kShown : 0;
  texts.resize(texts.size() - more);
  return join(texts, ", ") + (more > 0 ? format(" and {} more", more) : "");
}

/// Throws UsageError on every rank if `value` is not the same on all ranks; the message names `subject` and
/// the ranks that differ from rank 0.
void require_agreement(const Trainer& trainer, std::string_view subject, const std::string& value) {
  if (trainer.all_ranks == nullptr) return;
  const std::vector<std::string> hashes =
      gather_texts(*trainer.all_ranks, content_hash(std::as_bytes(std::span(value))));
  std::vector<std::string> others;
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) others.push_back(format("{}", rank));
  }
  if (others.empty()) return;
  throw UsageError(
      format("the ranks do not agree: {} of rank {} differs from that of rank 0; start all ranks with "
             "the same program, configuration and files",
             subject, join(others, ", ")));
}

/// The same for the configuration; the message names the keys.
void require_equal_configuration(const Trainer& trainer) {
  if (trainer.all_ranks == nullptr) return;
  const std::string own = config_toml(trainer.config, /*with_comments=*/false);
  const std::vector<std::string> hashes =
      gather_texts(*trainer.all_ranks, content_hash(std::as_bytes(std::span(own))));
  const auto other = std::ranges::find_if(hashes, [&](const std::string& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const std::vector<std::string> texts = gather_texts(*trainer.all_ranks, own);
  const auto rank = static_cast<size_t>(other - hashes.begin());
  throw UsageError(format(
      "the ranks do not agree: the configuration of rank {} differs from that of rank 0: {}; start all "
      "ranks with the same program, configuration and files",
      rank, differing_settings(texts[0], texts[rank])));
}

void build_ranks(Trainer& trainer) {
  if (trainer.world() == nullptr) return;
  trainer.place = {trainer.world()->rank(), trainer.world()->size()};
  const Config& config = trainer.config;
  plan_data_ranks(config, trainer.place.world_size);  // refuses degrees that do not fit
  trainer.all_ranks = group_of_all(trainer.world(), "world");
  require_agreement(trainer, "the program", format("{} {}", version(), commit()));
  require_equal_configuration(trainer);
}

/// Refuses to start over in the folder of an earlier run: that would destroy its metrics, and the next resume
/// would find its later checkpoints.
void require_unused(const Trainer& trainer) {
  const auto& checkpoint = trainer.config.checkpoint;
  if (checkpoint.resume || checkpoint.load_step >= 0 || trainer.is_restart()) return;
  const bool has_metrics = std::filesystem::exists(trainer.run_folder->metrics_file()) &&
                           !std::filesystem::is_empty(trainer.run_folder->metrics_file());
  if (!has_metrics && list_checkpoints(trainer.checkpoint_dir()).empty()) return;
  throw UsageError(
      format("{}: checkpoint.resume = false starts a new run, but the folder {} holds the metrics or "
             "checkpoints of an earlier one; name another run_dir, or move that folder away",
             where(trainer.loaded, "checkpoint.resume"), trainer.config.run_dir));
}

void build_run_folder(Trainer& trainer) {
  const std::filesystem::path run_dir = trainer.config.run_dir;
  rank0_first(trainer.all_ranks.get(), [&](const ReportProgress&) {
    if (trainer.is_main()) {
      trainer.run_folder = std::make_unique<RunFolder>(run_dir, trainer.log);
      require_unused(trainer);
      const auto checkpoints = trainer.run_folder->checkpoint_link(trainer.config.checkpoint.folder);
      trainer.log.add_file(trainer.run_folder->log_file());
      if (!checkpoints.empty()) {
        trainer.log.info("checkpoints are kept in {}, where {} points to", checkpoints.string(),
                         trainer.checkpoint_dir().string());
      }
      return;
    }
    create_folder_inside(run_dir, "logs");
    trainer.log.quiet_terminal();
    trainer.log.add_file(run_dir / "logs" / format("rank-{}.txt", trainer.place.rank));
  });
}

/// What the last bits of results depend on, apart from the program: "2 threads on Intel Xeon ... (AVX512)".
std::string arithmetic_of_this_process() {
  const int threads = at::get_num_threads();
  return format("{} {} on {} ({})", threads, threads == 1 ? "thread" : "threads",
                read_machine_facts().cpu.model, at::get_cpu_capability());
}

void build_threads(Trainer& trainer) {
  install_cpu_allocator();
  const auto& training = trainer.config.training;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the environment is never written
  const bool given = training.threads > 0 || std::getenv("OMP_NUM_THREADS") != nullptr;
  if (training.threads > 0) at::set_num_threads(static_cast<int>(training.threads));
  if (!given) at::set_num_threads(std::max(1, at::get_num_threads() / trainer.ranks_on_host));
  const std::string setting = training.threads > 0
                                  ? format("training.threads = {}", training.threads)
                                  : format("OMP_NUM_THREADS asks for {} threads", at::get_num_threads());
  const std::string warning = threads_warning(setting, at::get_num_threads(), hardware_threads());
  if (given && !warning.empty() && trainer.is_main()) trainer.log.warning("{}", warning);
  trainer.state.arithmetic = arithmetic_of_this_process();
  if (trainer.config.precision.compute == DType::bf16 && cpu::bf16_blocks() < cpu::Bf16Blocks::pairs) {
    trainer.log.warning(
        "this processor has no products of bf16 (AVX512_BF16 or AMX): precision.compute = \"bf16\" computes in fp32; "
        "precision.compute=fp32 trains a little faster here and needs more memory for activations only");
  }
  if (training.reduction != ReductionMode::ordered || trainer.all_ranks == nullptr) return;
  const std::vector<std::string> all = gather_texts(*trainer.all_ranks, trainer.state.arithmetic);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return trainer.log.warning(
        "ordered sums are bit-equal only with equal threads and processors: rank 0 has {}, rank {} has {}",
        all[0], rank, all[rank]);
  }
}

void build_device(Trainer& trainer) {
  trainer.device =
      compute_device(trainer.config.training.device, trainer.place.rank % std::max(1, trainer.ranks_on_host));
  if (!trainer.device.note.empty() && trainer.is_main()) trainer.log.warning("{}", trainer.device.note);
  if (trainer.all_ranks != nullptr)
    require_agreement(trainer, "the kind of device", c10::DeviceTypeName(trainer.device.device.type(), true));
  const auto& comm = trainer.config.comm;
  if (comm.backend == CommBackend::nccl)
    use_device_engine(trainer.device, trainer.config.training.device, comm.train_timeout);
  if (trainer.device.add_kernels != nullptr) add_kernels_to_rank(trainer.device.add_kernels);
  if (trainer.device.device.is_cpu() || trainer.all_ranks == nullptr) return;
  const auto failure = std::make_shared<CallFailure>(
      [ranks = trainer.all_ranks.get()](const std::string& reason) { ranks->abort(reason); });
  trainer.all_ranks = staged(std::move(trainer.all_ranks), trainer.device, failure);
}

/// Logs options that the user has set and that this job does not read, but another job with the same file would.
void log_unread_options(const Trainer& trainer) {
  if (!trainer.is_main()) return;
  for (const std::string& note :
       unread_notes(trainer.loaded, {trainer.place.world_size, trainer.ranks_on_host}))
    trainer.log.info("{}", note);
}

/// Logs what the model of model.from set.
void log_known_model(const Trainer& trainer) {
  const std::string& from = trainer.loaded.model_from;
  if (from.empty() || !trainer.is_main()) return;
  const bool by_ratio = trainer.config.lr_scheduler.warmup_ratio >= 0;
  const auto is_read = [&](const std::string& setting) {
    return !by_ratio || !setting.starts_with("lr_scheduler.warmup_steps");
  };
  std::vector<std::string> defaults;
  for (const std::string& setting : taken_from_model(trainer.loaded))
    if (is_fine_tune_default(setting) && is_read(setting)) defaults.push_back(setting);
  trainer.log.info("from {}: {}", from, model_summary(trainer.config.model));
  if (!defaults.empty()) trainer.log.info("defaults of a fine-tune: {}", join(defaults, ", "));
}

/// Logs the files of a model's folder that a run does not copy, as it copies the tokenizer's files.
void log_files_left_behind(const Trainer& trainer) {
  const std::filesystem::path from = trainer.loaded.model_from;
  if (from.empty() || !std::filesystem::exists(from / "config.json")) return;
  if (const auto names = files_left_behind(from); !names.empty())
    trainer.log.info("not taken from {} into the run and its exports: {}", from.string(), join(names, ", "));
}

void build_tokenizer_step(Trainer& trainer) {
  log_known_model(trainer);
  log_unread_options(trainer);
  rank0_first(trainer.all_ranks.get(), [&](const ReportProgress& report) {
    trainer.tokenizer = reading_input([&] { return job_tokenizer(trainer.config, trainer.log, report); });
    if (trainer.is_main()) save_run_tokenizer(trainer.config, *trainer.tokenizer);
  });
  if (!trainer.is_main()) return;
  for (const std::string& note : trainer.tokenizer->notes()) trainer.log.info("{}", note);
  log_files_left_behind(trainer);
}

void fit_vocabulary(Trainer& trainer) {
  auto& model = trainer.config.model;
  const int64_t tokens = trainer.tokenizer->vocab_size();
  if (model.vocab_size == 0) model.vocab_size = tokens;
  // A short text may yield fewer tokens than configured; the saved configuration has the actual number. A tokenizer from
  // elsewhere may have fewer tokens than there are bytes, a trained one never does.
  auto& tokenizer = trainer.config.tokenizer;
  tokenizer.vocab_size =
      std::min(tokenizer.vocab_size, std::max<int64_t>(tokens, make_byte_tokenizer()->vocab_size()));
  const LoadedConfig fitted{.config = trainer.config, .origins = trainer.loaded.origins};
  check_vocabulary(fitted, tokens);
}

void build_data(Trainer& trainer) {
  const auto& data = trainer.config.data;
  fit_vocabulary(trainer);
  // Text of which too little is held out is tokenized again as a whole; that is logged only once.
  std::set<std::pair<int64_t, int64_t>> logged;
  const auto log_end = [&](const TokenizeProgress& progress) {
    if (progress.bytes_done < progress.bytes_total) return;
    if (!logged.emplace(progress.bytes_total, progress.tokens).second) return;
    trainer.log.info("tokenized {} into {} tokens", human_bytes(progress.bytes_total),
                     with_thousands(progress.tokens));
  };
  const DataPlan plan = data_plan(trainer.config, trainer.config.model.vocab_size);
  rank0_first(trainer.all_ranks.get(), [&](const ReportProgress& report) {
    const auto advance = [&](const TokenizeProgress& progress) {
      report();
      log_end(progress);
    };
    trainer.data = reading_input([&] { return open_data(plan, trainer.tokenizer.get(), advance); });
    const auto hash_of = [&](const std::filesystem::path& file) {
      return whole_hash(file, plan.cache_dir / "hashes", report);
    };
    // Only checkpoints record the content of the training data.
    if (trainer.config.checkpoint.enable) trainer.state.data_content = trainer.data.train->content(hash_of);
  });
  trainer.state.tokenizer = trainer.tokenizer->fingerprint();
  for (const std::string& note : trainer.data.notes) trainer.log.warning("{}", note);
  const bool is_mixture = trainer.data.sources.size() > 1;
  for (const std::string& line :
       is_mixture ? describe_sources(trainer.data) : account_lines(trainer.data.sources))
    trainer.log.info("{}", line);
  require_agreement(trainer, "the data", trainer.data.train->fingerprint());
  if (trainer.config.validation.freq > 0 && trainer.data.validation == nullptr) {
    throw UsageError(format(
        "{}: validation.freq = {} needs data.validation or data.validation_fraction (now {})",
        where(trainer.loaded, "validation.freq"), trainer.config.validation.freq, data.validation_fraction));
  }
}

void build_job(Trainer& trainer) {
  trainer.job = plan_job(trainer.config, trainer.place);
}

void build_steps(Trainer& trainer) {
  const auto& training = trainer.config.training;
  const int64_t rows = trainer.data.train->rows_per_epoch();
  const int64_t of_step = trainer.job.batch.rows_per_step;
  // A step may have rows of two epochs, so all epochs are counted together; the last step has all that is left.
  trainer.total_steps =
      training.steps > 0 ? training.steps : (training.epochs * rows + of_step - 1) / of_step;
}

/// Logs whether the step fits into the free memory. Throws UsageError if it needs more than the machine has. Not for other devices
/// than the CPU, whose memory it does not know.
void check_memory(Trainer& trainer) {
  if (!trainer.device.device.is_cpu()) return;
  const MemoryFacts memory = read_machine_facts().memory;
  if (memory.total <= 0) return;
  trainer.memory_budget = free_memory(memory, trainer.ranks_on_host, "are free for it on this machine");
  trainer.memory_budget.of_plan = false;
  const std::string verdict = memory_verdict(trainer.job, trainer.predicted_memory, trainer.memory_budget);
  const int64_t needed = needed_bytes(trainer.predicted_memory, trainer.memory_budget);
  const int64_t most =
      std::min(memory.total / trainer.ranks_on_host, memory.address_space.value_or(memory.total));
  if (needed > most) throw UsageError(verdict);
  if (needed > trainer.memory_budget.bytes) {
    trainer.log.warning("{}", verdict);
  } else {
    trainer.log.info("{}", verdict);
  }
}

void build_step_program(Trainer& trainer) {
  check_job(trainer.loaded, trainer.job.whole);
  trainer.job.config.training.threads = at::get_num_threads();  // workspaces depend on it
  trainer.train_program = plan_train_step(trainer.job);
  trainer.evaluation_program = plan_evaluation(trainer.job);
  trainer.predicted_memory = account(trainer.train_program);
  check_memory(trainer);
}

void test_group(const GroupCommunicators& groups, const GroupLane& lane) {
  Communicator& group = *groups.at(lane.group, lane.lane);
  const std::string& name = groups.layout().groups.at(static_cast<size_t>(lane.group)).name;
  if (lane.lane == Lane::peer || is_pipeline_lane(lane.lane))
    test_messages(group, name);
  else
    test_collectives(group, name);
}

void build_groups(Trainer& trainer) {
  if (trainer.world() == nullptr) {
    trainer.groups = std::make_shared<const GroupCommunicators>();
    return;
  }
  std::vector<GroupLane> lanes = group_lanes(trainer.train_program);
  // A stage without layers exchanges nothing inside its blocks, but its forward code has the functions for it. Whole
  // units are read between steps on the compute lane.
  for (const int group :
       {trainer.job.layout.tensor_group, trainer.job.layout.keys_group, trainer.job.layout.heads_group,
        trainer.job.layout.find(kSliceShardGroup), trainer.job.layout.find(kExpertShardGroup)}) {
    const GroupLane lane{group, Lane::compute};
    if (group >= 0 && std::ranges::find(lanes, lane) == lanes.end()) lanes.push_back(lane);
  }
  if (plan_context(trainer.config).has_ring()) lanes.push_back({trainer.job.layout.keys_group, Lane::peer});
  if (plan_tensor(trainer.config, trainer.place).async)
    lanes.push_back({trainer.job.layout.tensor_group, Lane::peer});
  trainer.groups = std::make_shared<const GroupCommunicators>(*trainer.world(), trainer.job.layout, lanes,
                                                              /*name=*/"", trainer.device);
  if (trainer.world()->simulated()) return;
  for (const GroupLane& lane : trainer.groups->lanes()) test_group(*trainer.groups, lane);
  require_equal_calls(trainer.train_program, *trainer.groups);
  require_equal_calls(trainer.evaluation_program, *trainer.groups);
}

void build_parameters(Trainer& trainer) {
  StoreOptions options;
  options.compute = trainer.device;
  options.pinned = !trainer.device.device.is_cpu();
  trainer.store =
      std::make_unique<ModelStore>(trainer.job.part.units, trainer.job.layout, options, trainer.groups);
  // What is not trained comes from the model that the run starts from, as a whole.
  const auto& checkpoint = trainer.config.checkpoint;
  trainer.store->initialize(static_cast<uint64_t>(trainer.config.training.seed),
                            /*with_frozen=*/checkpoint.initial_load_path.empty() || !checkpoint.strict);
}

/// Empty for the cross-entropy.
LossFunction loss_function(const Config& config) {
  const LossKind kind = find_loss(config);
  if (kind.compute == nullptr) return {};
  return [compute = kind.compute, extensions = config.extensions](const LossChunk& chunk) {
    compute(chunk, extensions);
  };
}

void build_model(Trainer& trainer) {
  const Config& config = trainer.config;
  const ForwardOptions options{
      .context_length = std::max(config.training.seq_len, generation_context(config)),
      .row_length = config.training.seq_len,
      .exchange = context_exchange(*trainer.groups, plan_context(config)),
      .tensor = tensor_exchange(*trainer.groups, plan_tensor(config, trainer.place)),
      .loss = {config.training.z_loss_weight, config.training.label_smoothing, loss_function(config)},
      .device = trainer.store->device()};
  trainer.model = make_model(trainer.job.part, trainer.store->lookup(), options);
}

void build_optimizer(Trainer& trainer) {
  const auto& optimizer = trainer.config.optimizer;
  trainer.optimizer = std::make_unique<Optimizer>(
      *trainer.store, resolve_param_groups(optimizer, trainer.job.model(), trainer.job.part.units,
                                           trainer.config.extensions));
  build_schedule(trainer);
}

void build_loader(Trainer& trainer) {
  const auto& data = trainer.config.data;
  trainer.loader = std::make_unique<PrefetchLoader>(trainer.data.train, trainer.job.batch,
                                                    std::max<int64_t>(1, data.prefetch));
}

void build_executor(Trainer& trainer) {
  trainer.executor = std::make_unique<Executor>(trainer.train_program, trainer.model, *trainer.store);
  trainer.evaluator = std::make_unique<Executor>(trainer.evaluation_program, trainer.model, *trainer.store);
  trainer.train_step =
      std::make_unique<TrainStep>(trainer.config, *trainer.executor, *trainer.store, *trainer.optimizer);
  trainer.train_step->teacher = trainer.teacher.get();
}

/// Metrics of steps that no checkpoint covers are done again; those of the earlier start are kept beside
/// them.
void keep_metrics_of_earlier_start(Trainer& trainer, const std::filesystem::path& file) {
  std::error_code failure;
  if (trainer.last_saved_step >= 0 || std::filesystem::file_size(file, failure) == 0 || failure) return;
  const std::filesystem::path aside = set_aside(file, ".old");
  trainer.log.info("an earlier start left metrics but no checkpoint: they are kept in {}", aside.string());
}

void build_metrics(Trainer& trainer) {
  SinkRequest request{
      .config = trainer.config, .log = trainer.log, .is_main = trainer.is_main(), .metrics_file = {}};
  if (trainer.is_main()) {
    trainer.run_folder->write_config(config_toml(trainer.config, /*with_comments=*/false));
    const auto file = trainer.run_folder->metrics_file();
    keep_metrics_of_earlier_start(trainer, file);
    rewind_jsonl(file, trainer.state.step, trainer.state.validation_pending);
    request.metrics_file = file;
  }
  trainer.metrics = std::make_unique<SinkQueue>(make_sinks(request), trainer.log);
}

}  // namespace

void build_schedule(Trainer& trainer) {
  const auto& lr = trainer.config.lr_scheduler;
  const int64_t steps = std::max<int64_t>(1, trainer.total_steps - trainer.state.schedule_begin);
  trainer.schedule = std::make_unique<LearningRateSchedule>(lr, steps, trainer.config.extensions);
  trainer.state.schedule_steps = lr.total_steps > 0 ? lr.total_steps : steps;
  if (const std::string warning = schedule_warning(trainer.config, steps); !warning.empty())
    trainer.log.warning("{}", warning);
}

std::vector<Trainer::BuildStep> standard_build_steps() {
  return {{"ranks", build_ranks},
          {"run_folder", build_run_folder},
          {"threads", build_threads},
          {"device", build_device},
          {"tokenizer", build_tokenizer_step},
          {"data", build_data},
          {"job", build_job},
          {"steps", build_steps},
          {"step_program", build_step_program},
          {"groups", build_groups},
          {"teacher", build_teacher},
          {"reference", build_reference},
          {"parameters", build_parameters},
          {"model", build_model},
          {"optimizer", build_optimizer},
          {"loader", build_loader},
          {"executor", build_executor},
          {"checkpoint", build_checkpoint},
          {"preferences", build_preferences},
          {"answer_ends", record_answer_ends},
          {"metrics", build_metrics}};
}

}  // namespace stepforge
