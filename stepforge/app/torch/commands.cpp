// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/commands.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <sstream>

#include "stepforge/app/torch/loaded_model.h"
#include "stepforge/app/torch/sampling_choice.h"
#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/frozen_weights.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/engines/world.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/launch/rank_environment.h"
#include "stepforge/plan/job_batch.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/prove/prove_layout.h"
#include "stepforge/text/text_ends.h"
#include "stepforge/text/tokenizer_files.h"
#include "stepforge/train/builtin_callbacks.h"
#include "stepforge/train/generation.h"
#include "stepforge/train/state.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

/// Throws Error with the first difference.
void prove_before_training(const Config& config, int world_size, Logger& log) {
  const LayoutProof proof = prove_layout_of(config, world_size);
  for (const std::string& fact : proof.facts) log.info("proved: {}", fact);
  for (const std::string& option : proof.left_out) log.info("not proved: {}", option);
  if (!proof.difference.empty())
    throw Error(format("debug.prove_layout: this layout does not train like one rank: {}", proof.difference));
}

}  // namespace

int run(const TrainOptions& options, const CommandContext& context) {
  std::signal(SIGPIPE, SIG_IGN);  // the run continues if the reader of its log goes away (train | head)
  if (options.dry_run_ranks > 0) return run_dry(options, context);
  const RankEnvironment ranks = discover_ranks(process_environment());
  const std::unique_ptr<World> world = make_world(ranks, options.config.config.comm);
  if (context.interrupts != nullptr) context.interrupts->ranks_have_met();
  try {
    if (options.config.config.debug.prove_layout && ranks.rank == 0)
      prove_before_training(options.config.config, ranks.world_size, context.log);
    Trainer trainer(options.config, context.log, context.interrupts, world.get());
    trainer.ranks_on_host = ranks.local_world_size;
    trainer.launch = {ranks.launch_id, ranks.restarts};
    if (!options.trace.empty()) trainer.add_callback(make_trace_callback(options.trace));
    trainer.build();
    const RunOutcome outcome = trainer.run();
    return outcome == RunOutcome::interrupted ? static_cast<int>(ExitCode::interrupted) : 0;
  } catch (const std::exception& failure) {
    world->abort(failure.what());
    throw;
  }
}

int run(const ProveOptions& options, const CommandContext&) {
  const LayoutProof proof = prove_layout_of(options.config, options.world_size);
  for (const std::string& fact : proof.facts) std::cout << "equal: " << fact << "\n";
  for (const std::string& option : proof.left_out) std::cout << "not compared: " << option << "\n";
  if (proof.difference.empty()) return 0;
  std::cout << "different: " << proof.difference << "\n";
  return static_cast<int>(ExitCode::failure);
}

namespace {

/// The lines of a file: texts, or JSON lines that are texts or have "prompt".
std::vector<std::string> read_prompts(const std::filesystem::path& path) {
  const bool is_json = path.extension() == ".jsonl";
  std::istringstream lines(read_file(path));
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    if (is_json) {
      const std::string source = format("{}:{}", path.string(), number);
      const Json json = parse_json(line, source);
      line = json.is_string() ? json.get<std::string>() : JsonReader(json, source)["prompt"].text();
    }
    prompts.push_back(std::move(line));
  }
  if (prompts.empty()) throw UsageError(format("{} has no prompt", path.string()));
  return prompts;
}

}  // namespace

int run(const GenerateOptions& options, const CommandContext& context) {
  install_cpu_allocator();
  const ChargeMemory rank(make_rank_memory());
  const bool from_file = !options.prompts.empty();
  const std::vector<std::string> prompts =
      from_file ? read_prompts(options.prompts) : std::vector<std::string>{options.prompt};
  const DType compute = options.compute;
  const LoadedModel model = load_model(
      options.model,
      {.compute = compute, .device = options.device, .adapters = options.adapters, .writes_text = true},
      context);
  const auto tokenizer = model.known.require_tokenizer();
  const int64_t longest_context = model.config().model.max_position;
  const std::vector<int32_t> ends = end_tokens(*tokenizer, model.generation);
  std::vector<std::vector<int32_t>> prompt_ids;
  int64_t longest_prompt = 1;
  for (const std::string& prompt : prompts) {
    prompt_ids.push_back(prompt_tokens(*tokenizer, prompt, model.config().data.bos));
    const int64_t tokens = std::ssize(prompt_ids.back());
    check_prompt(tokens, longest_context);
    longest_prompt = std::max(longest_prompt, tokens);
  }
  const SamplingParams sampling = choose_sampling(options.sampling, model.generation,
                                                  {options.temperature, options.top_k, options.top_p});
  const int64_t capacity = std::min(longest_context, longest_prompt + sampling.max_tokens);
  Model forward = model.forward(capacity);
  Generator generator(model.spec, plan_generation(compute, model.spec, capacity), forward, *model.store,
                      compute, capacity);
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (from_file) {
      const std::string text = generate_text(generator, *tokenizer, prompt_ids[i], ends, sampling);
      const Json line = {{"prompt", prompts[i]}, {"text", text}};
      std::cout << line.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
      continue;
    }
    std::cout << prompts[i] << std::flush;
    generate_text(generator, *tokenizer, prompt_ids[i], ends, sampling,
                  [](std::string_view piece) { std::cout << piece << std::flush; });
    std::cout << std::endl;
  }
  return 0;
}

namespace {

/// Logs what is not taken over from a Hugging Face folder.
void log_tokenizer_notes(const std::filesystem::path& model, const Tokenizer* tokenizer, Logger& log) {
  if (tokenizer != nullptr)
    for (const std::string& note : tokenizer->notes()) log.info("{}", note);
  if (!std::filesystem::exists(model / "config.json")) return;
  if (const auto names = files_left_behind(model); !names.empty())
    log.info("not taken from {}: {}", model.string(), join(names, ", "));
}

}  // namespace

namespace {

/// Writes the adapter of a run, without the model that it belongs to.
int write_adapter(const ExportOptions& options, const ModelFiles& model, const CommandContext& context) {
  const std::string base = home_of_frozen_weights(model.config().checkpoint.initial_load_path).string();
  const auto tokenizer = model.known.load_tokenizer();
  export_adapter(options.output, model.config().adapter, model.spec, model.weights, base, tokenizer.get(),
                 options.dtype.value_or(DType::f32), model.taken());
  context.log.info("exported the adapter of {} to {}, which belongs to {}; --merge writes a plain model",
                   model.known.weights.string(), options.output.string(), base);
  return 0;
}

/// The adapters to merge: that of the run, and those that the command line names.
AdapterDeltas adapters_to_merge(const ExportOptions& options, const ModelFiles& model,
                                const ModelSpec& plain) {
  const AdapterConfig& own = model.config().adapter;
  AdapterDeltas deltas = read_adapters(options.adapters, plain, own.bias);
  if (own.enabled()) deltas.add(own, model.weights, 1.0, /*replaces=*/false, model.taken());
  if (deltas.empty())
    throw UsageError(
        format("--merge: {} has no adapter, and none is given; name one with --adapter, or leave --merge out",
               options.model.string()));
  return deltas;
}

}  // namespace

int run(const ExportOptions& options, const CommandContext& context) {
  ModelFiles model = open_model(options.model, context);
  if (!options.merge && !options.adapters.empty())
    throw UsageError("--adapter: an export has adapters only merged into its weights; add --merge");
  if (model.config().adapter.enabled() && !options.merge) return write_adapter(options, model, context);
  const auto shard = static_cast<int64_t>(options.max_shard_gib * static_cast<double>(1 << 30));
  const auto tokenizer = model.known.load_tokenizer();
  ModelSpec plain = model_spec(model.config().model);
  HfExportOptions exported{.dtype = options.dtype.value_or(model.config().checkpoint.export_dtype),
                           .max_shard_bytes = shard,
                           .generation = model.generation,
                           .stacked_experts = options.stacked_experts};
  AdapterDeltas deltas;
  if (options.merge) {
    deltas = adapters_to_merge(options, model, plain);
    exported.adapters = &deltas;
    if (deltas.unties(plain)) {
      untie(model.known.config.model, plain, model.weights);
      plain = model_spec(model.config().model);
      context.log.info(
          "the model ties its head to the embedding, and an adapter changes one of them: the export has both "
          "(tie_word_embeddings = false)");
    }
  }
  const MergeError error =
      export_hf(options.output, model.config().model, plain, model.weights, tokenizer.get(), exported);
  log_tokenizer_notes(options.model, tokenizer.get(), context.log);
  context.log.info("exported {} parameters of {} to {}", with_thousands(plain.parameter_count()),
                   model.known.weights.string(), options.output.string());
  if (options.merge)
    context.log.info(
        "merged adapters into {} tensors; rounding to {} changed what they add by {:.2g} % (rms)",
        deltas.names().size(), dtype_name(exported.dtype), 100 * error.relative);
  return 0;
}

namespace {

void require_hf_folder(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "config.json")) return;
  const bool ours =
      std::filesystem::exists(folder / "config.toml") || std::filesystem::exists(folder / "manifest.json");
  if (!ours) refuse_as_model(folder);
  throw UsageError(
      format("{} is a run or checkpoint of this program, not a Hugging Face folder; start from it with "
             "model.from, or write a Hugging Face folder of it with export",
             folder.string()));
}

}  // namespace

int run(const ImportOptions& options, const CommandContext& context) {
  require_hf_folder(options.model);
  if (std::filesystem::exists(std::filesystem::symlink_status(options.output))) {
    throw UsageError(format("{} exists already; choose another folder for the run", options.output.string()));
  }
  LoadedModel model = load_model(options.model, {}, context);
  Config config = model.config();
  const auto tokenizer = model.known.load_tokenizer();
  config.run_dir = std::filesystem::absolute(options.output).string();
  config.training.seq_len = std::min(config.training.seq_len, config.model.max_position);
  use_fine_tune_defaults(config);
  StagedFolder folder(options.output);
  if (tokenizer != nullptr)
    tokenizer->save_pretrained(folder.staging() / run_tokenizer_folder(config).filename());
  write_file_atomic(folder.staging() / kGenerationFileName, model.generation.dump(2) + "\n");
  write_checkpoint(
      folder.staging() / config.checkpoint.folder, 0,
      stage_checkpoint(model.spec, *model.store, nullptr,
                       state_to_json(TrainerState{}, config, plan_batch(config).rows_per_step, 0)));
  write_file_atomic(folder.staging() / "config.toml", config_toml(config));
  folder.publish();
  context.log.info(
      "imported {} parameters; train them with: stepforge train {} data.sources=... training.steps=...",
      with_thousands(model.spec.parameter_count()), (options.output / "config.toml").string());
  log_tokenizer_notes(options.model, tokenizer.get(), context.log);
  if (tokenizer == nullptr) {
    context.log.warning("{} has no tokenizer: set tokenizer.path before training", options.model.string());
  }
  return 0;
}

}  // namespace stepforge
