// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/builtin_callbacks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>

#include "stepforge/base/dtype.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/json.h"
#include "stepforge/base/machine.h"
#include "stepforge/base/staged.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/checkpoint/adapter_folder.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/comm/device_engine.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/kernels/cpu/bf16_blocks.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/simulate.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/text/chat_template.h"
#include "stepforge/text/text_ends.h"
#include "stepforge/train/alarms.h"
#include "stepforge/train/best_step.h"
#include "stepforge/train/callback_kinds.h"
#include "stepforge/train/generation.h"
#include "stepforge/train/logging.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

std::string counted(int64_t count, std::string_view noun) {
  return format("{} {}{}", with_thousands(count), noun, count == 1 ? "" : noun.ends_with("h") ? "es" : "s");
}

/// Logs the size of the run at its start, and the measured peak memory of a step at its end.
class ReportCallback : public Callback {
 public:
  std::string_view name() const override { return "report"; }

  void init_end(Trainer& trainer) override {
    const auto& model = trainer.job.whole;
    const auto& batch = trainer.job.batch;
    const int ranks = trainer.job.layout.data_ranks;
    if (trainer.place.world_size > 1) {
      const DeviceEngine* const engine = trainer.device.engine.get();
      trainer.log.info("ranks: {} ({}), {}", trainer.world()->size(), mesh_text(trainer.job.layout.dims),
                       engine != nullptr ? engine->name() : trainer.world()->transport());
    }
    const auto& plugins = trainer.config.experimental.custom_import;
    if (!plugins.empty()) trainer.log.info("plug-ins: {}", join(plugins, ", "));
    trainer.log.info("model: {}, {} parameters ({}), {}, vocabulary {}", trainer.config.model.family,
                     with_thousands(model.parameter_count()), human_count(model.parameter_count()),
                     counted(model.layers, "layer"), with_thousands(model.vocab_size));
    if (const int64_t active = model.active_parameter_count(); active != model.parameter_count())
      trainer.log.info("experts: {} active parameters per token ({})", with_thousands(active),
                       human_count(active));
    trainer.log.info(
        "step: {}{} x {} x {} tokens = {} tokens", ranks == 1 ? "" : format("{} ranks x ", ranks),
        counted(batch.micro_batches(), "micro-batch"), counted(batch.rows_per_micro_batch, "row"),
        batch.seq_len, with_thousands(batch.tokens_per_step()));
    report_products(trainer);
    trainer.log.info("program: {} operations, predicted peak memory {}",
                     with_thousands(std::ssize(trainer.train_program.operations)),
                     human_bytes(trainer.predicted_memory.peak_of_one_memory()));
    trainer.log.info("run: {}, {}, {}; folder {}", counted(trainer.total_steps, "step"),
                     expected_size(trainer), passes_text(trainer), trainer.config.run_dir);
    report_repetition(trainer);
  }

  void train_begin(Trainer& trainer) override {
    trainer.device.backend->reset_peak();
    if (trainer.state.step < trainer.total_steps || trainer.state.validation_pending) return;
    trainer.log.info("nothing to do: step {} of {} is done; a higher training.steps trains longer",
                     trainer.state.step, trainer.total_steps);
  }

  void step_end(Trainer& trainer) override {
    // Only the training step is compared with its plan, not validation and samples.
    step_peak_ = std::max(step_peak_, trainer.device.backend->memory().peak_bytes);
  }
  void step_begin(Trainer& trainer) override {
    trainer.device.backend->reset_peak();
    trainer.device.backend->trim();
  }

  void train_end(Trainer& trainer) override {
    const int64_t predicted = trainer.predicted_memory.peak_of_one_memory();
    if (step_peak_ == 0) return;
    const double percent =
        100.0 * static_cast<double>(predicted - step_peak_) / static_cast<double>(step_peak_);
    trainer.log.info("peak tensor memory of a step: {} measured, {} predicted ({} %)",
                     human_bytes(step_peak_), human_bytes(predicted),
                     std::abs(percent) < 0.05 ? "0.0" : format("{:+.1f}", percent));
  }

 private:
  /// How products go on this processor, and whether another precision is faster.
  static void report_products(const Trainer& trainer) {
    if (!trainer.device.device.is_cpu()) return trainer.log.info("device: {}", trainer.device.device.str());
    const std::string vectors = vector_instructions(read_machine_facts().cpu);
    const std::string fp32 = "fp32 by " + vectors;
    const cpu::Bf16Blocks blocks = cpu::bf16_blocks();
    const std::string bf16 = blocks == cpu::Bf16Blocks::tiles   ? "bf16 by AMX tiles"
                             : blocks == cpu::Bf16Blocks::pairs ? "bf16 by AVX512_BF16 pairs"
                                                                : "bf16 widened to fp32, by " + vectors;
    const bool narrow = trainer.config.precision.compute == DType::bf16;
    trainer.log.info("products: {}, {}{}", narrow ? bf16 : fp32, counted(at::get_num_threads(), "thread"),
                     blocks == cpu::Bf16Blocks::tiles && !narrow
                         ? "; precision.compute=bf16 is faster on this processor (AMX)"
                         : "");
  }

  /// "about 1,200 tokens and 300 labels": of an average row, without padding.
  static std::string expected_size(const Trainer& trainer) {
    const RowStream& stream = *trainer.data.train;
    const auto rows = static_cast<double>(trainer.total_steps * trainer.job.batch.rows_per_step);
    const double tokens = rows * stream.tokens_per_row();
    const std::string text = with_thousands(std::llround(tokens)) + " tokens";
    const std::optional<double> labels = stream.labels_per_row();
    return labels ? format("{} and {} labels", text, with_thousands(std::llround(rows * *labels))) : text;
  }

  static std::string passes_text(const Trainer& trainer) {
    const double passes = trainer.passes(trainer.total_steps);
    const double steps = 1.0 / trainer.passes(1);
    const std::string epoch =
        std::nearbyint(steps) == steps ? counted(std::llround(steps), "step") : format("{:.2f} steps", steps);
    return format("{:.2f} passes over the data, one epoch is {}", passes, epoch);
  }

  static void report_repetition(const Trainer& trainer) {
    const auto times = static_cast<int64_t>(trainer.passes(trainer.total_steps));
    if (times < 2) return;
    const char* data = trainer.data.train->bytes_per_token() ? "your text" : "the data";
    if (trainer.config.validation.freq > 0) {
      return trainer.log.info("the run reads {} {} times", data, times);
    }
    trainer.log.warning("the run reads {} {} times and validation is off, so overfitting will not show;",
                        data, times);
    trainer.log.warning("data.validation_fraction=0.05 validation.freq={} would show it",
                        std::max<int64_t>(1, trainer.total_steps / 20));
  }

  int64_t step_peak_ = 0;
};

/// Logs generated text every sampling.freq steps, and, if asked, at both ends of the run.
class SamplingCallback : public Callback {
 public:
  std::string_view name() const override { return "sampling"; }

  void train_begin(Trainer& trainer) override {
    if (trainer.config.sampling.at_ends && trainer.state.step == 0) sample(trainer);
  }

  void step_end(Trainer& trainer) override {
    const int64_t freq = trainer.config.sampling.freq;
    last_is_sampled_ = freq > 0 && trainer.state.step % freq == 0;
    if (last_is_sampled_) sample(trainer);
  }

  void train_end(Trainer& trainer) override {
    if (trainer.config.sampling.at_ends && !last_is_sampled_ && trainer.finished()) sample(trainer);
  }

 private:
  static void sample(Trainer& trainer) {
    const auto& sampling = trainer.config.sampling;
    const int64_t capacity = generation_context(trainer.config);
    Generator generator(trainer.job.part, plan_samples(trainer.job, capacity), trainer.model, *trainer.store,
                        trainer.config.precision.compute, capacity);
    SamplingParams options;
    options.max_tokens = sampling.max_tokens;
    options.temperature = sampling.temperature;
    options.top_k = sampling.top_k;
    options.seed = static_cast<uint64_t>(sampling.seed);
    const Tokenizer& tokenizer = *trainer.tokenizer;
    trainer.log.info("sample at step {}: {}{}", trainer.state.step, sampling.prompt,
                     generate_text(generator, tokenizer, prompt_ids(trainer.config, tokenizer),
                                   trainer.end_tokens, options));
  }

  static std::vector<int32_t> prompt_ids(const Config& config, const Tokenizer& tokenizer) {
    const std::string text = sample_prompt(config);
    // A template writes the beginning of the text itself.
    return text == config.sampling.prompt ? prompt_tokens(tokenizer, text, config.data.bos)
                                          : tokenizer.encode(text);
  }

  bool last_is_sampled_ = true;  ///< of the steps of this start; one without steps shows nothing
};

/// Writes the last checkpoint of a completed run as a Hugging Face folder.
class ExportCallback : public Callback {
 public:
  std::string_view name() const override { return "export"; }

  void train_end(Trainer& trainer) override {
    if (!trainer.is_main() || !trainer.finished()) return;
    const std::string step = checkpoint_folder_name(trainer.last_saved_step);
    const auto output = std::filesystem::path(trainer.config.run_dir) / "hf" / step;
    if (std::filesystem::exists(output)) {
      return trainer.log.info("{} exists already and is kept", output.string());
    }
    try {
      write(trainer, step, output);
    } catch (const std::exception& failure) {
      trainer.callbacks.emit(&Callback::export_failed, trainer, failure.what());
      throw;
    }
    trainer.callbacks.emit(&Callback::exported, trainer, output);
  }

 private:
  static void write(Trainer& trainer, const std::string& step, const std::filesystem::path& output) {
    create_folder_inside(trainer.config.run_dir, output.parent_path().filename());
    const FoundCheckpoint found{trainer.checkpoint_dir() / step, trainer.last_saved_step, trainer.left_out};
    if (trainer.config.adapter.enabled()) {
      const auto taken = initial_adapter_of(trainer.config.run_dir, trainer.config.adapter, trainer.job.whole,
                                            trainer.left_out.taken);
      export_adapter(output, trainer.config.adapter, trainer.job.whole, checkpoint_tensors(found),
                     trainer.left_out.from.string(), trainer.tokenizer.get(), DType::f32,
                     taken ? &*taken : nullptr);
      return trainer.log.info("exported the adapter of {} to {}", found.path.string(), output.string());
    }
    const HfExportOptions options = {.dtype = trainer.config.checkpoint.export_dtype,
                                     .generation = read_generation_config(trainer.config.run_dir)};
    export_hf(output, trainer.config.model, trainer.job.whole, checkpoint_tensors(found),
              trainer.tokenizer.get(), options);
    trainer.log.info("exported {} to {}", found.path.string(), output.string());
  }
};

class TraceCallback : public Callback {
 public:
  explicit TraceCallback(std::filesystem::path path) : path_(std::move(path)) {}
  std::string_view name() const override { return "trace"; }

  void step_end(Trainer& trainer) override {
    ++steps_;
    const bool last = trainer.state.step == trainer.total_steps;
    const bool traced = steps_ == kTracedStep || (last && steps_ < kTracedStep);
    if (!traced || !trainer.is_main()) return;
    const StepProgram& program = trainer.train_program;
    const std::vector<OperationTime>& times = trainer.executor->times();
    const MachineModel machine =
        measured_machine(program, times, format("rates of step {}", trainer.state.step));
    const TracedRun predicted{"predicted with " + machine_text(machine), simulate(program, machine)};
    write_file_atomic(path_, trace_json(program, {predicted, {"ran", times}}));
    trainer.log.info("step {} traced to {}: {}", trainer.state.step, path_.string(),
                     lane_report_text(lane_report(program, times)));
  }

 private:
  static constexpr int kTracedStep = 3;  // earlier ones touch new memory
  std::filesystem::path path_;
  int steps_ = 0;
};

}  // namespace

std::unique_ptr<Callback> make_trace_callback(std::filesystem::path path) {
  return std::make_unique<TraceCallback>(std::move(path));
}

std::string sample_prompt(const Config& config) {
  const std::string& prompt = config.sampling.prompt;
  const RecordOptions records = data_plan(config, 0).records;
  const bool has_template = !records.chat_template.empty() || ChatTemplate::exists(records.tokenizer_folder);
  if (!trains_on_conversations(config.data) || !has_template) return prompt;
  Json message = Json::object();
  message["role"] = "user";
  message["content"] = prompt;
  return ChatTemplate::load(records.tokenizer_folder, records.chat_template)
      .render(Json::array({message}), {.add_generation_prompt = true})
      .text;
}

int64_t generation_context(const Config& config) {
  const auto& sampling = config.sampling;
  if (!sampling.enabled()) return 0;
  // A prompt has at most as many tokens as bytes, or the one token of an empty prompt.
  return sampling.max_tokens + static_cast<int64_t>(sample_prompt(config).size()) + 1;
}

const std::vector<CallbackKind>& builtin_callbacks() {
  using Made = std::unique_ptr<Callback>;
  static const std::vector<CallbackKind> kinds = {
      {"report", [](const Config&) -> Made { return std::make_unique<ReportCallback>(); }},
      {"alarms", [](const Config&) -> Made { return make_alarms(); }},
      {"logging", [](const Config&) -> Made { return make_logging(); }},
      {"best", [](const Config& config) -> Made { return make_best_step(config); }},
      {"sampling",
       [](const Config& config) -> Made {
         return config.sampling.enabled() ? std::make_unique<SamplingCallback>() : nullptr;
       }},
      {"export",
       [](const Config& config) -> Made {
         return config.checkpoint.last_save_in_hf ? std::make_unique<ExportCallback>() : nullptr;
       }},
  };
  return kinds;
}

}  // namespace stepforge
