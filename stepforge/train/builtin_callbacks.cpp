#include "stepforge/train/builtin_callbacks.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "stepforge/base/dtype.h"
#include "stepforge/base/files.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/metrics/console.h"
#include "stepforge/base/machine.h"
#include "stepforge/metrics/names.h"
#include "stepforge/metrics/record.h"
#include "stepforge/metrics/smoothed.h"
#include "stepforge/metrics/throughput.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/simulate.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/train/generation.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

/// What is about to happen, and at the end what memory it took.
class ReportCallback : public Callback {
 public:
  std::string_view name() const override { return "report"; }

  void init_end(Trainer& trainer) override {
    const auto& model = trainer.model_spec;
    trainer.log.info("model {}: {} parameters ({}), {} layers, vocabulary {}", trainer.config.model.family,
                     with_thousands(model.parameter_count()), human_count(model.parameter_count()),
                     model.layers, with_thousands(model.vocab_size));
    trainer.log.info(
        "step: {} micro-batches of {} x {} tokens = {} tokens; {} operations; predicted peak memory {}",
        trainer.batch.micro_batches, trainer.batch.rows_per_micro_batch, trainer.batch.seq_len,
        with_thousands(trainer.batch.tokens_per_step()), trainer.train_program.operations.size(),
        human_bytes(trainer.predicted_memory.peak_of_one_memory()));
    trainer.log.info("run: {} steps, {} tokens in all; one epoch is {} steps; folder {}", trainer.total_steps,
                     with_thousands(trainer.total_steps * trainer.batch.tokens_per_step()),
                     trainer.steps_per_epoch, trainer.config.run_dir);
  }

  void train_begin(Trainer& trainer) override { reset_cpu_peak(); }

  void step_end(Trainer& trainer) override {
    // Validation and samples have programs of their own: what is compared with the plan is the training step.
    step_peak_ = std::max(step_peak_, cpu_memory().peak_bytes);
  }
  void step_begin(Trainer& trainer) override { reset_cpu_peak(); }

  void train_end(Trainer& trainer) override {
    const int64_t predicted = trainer.predicted_memory.peak_of_one_memory();
    if (step_peak_ == 0) return;
    trainer.log.info("peak tensor memory of a step: {} measured, {} predicted ({:+.1f} %)",
                     human_bytes(step_peak_), human_bytes(predicted),
                     100.0 * static_cast<double>(predicted - step_peak_) / static_cast<double>(step_peak_));
  }

 private:
  int64_t step_peak_ = 0;
};

class LoggingCallback : public Callback {
 public:
  explicit LoggingCallback(const Trainer& trainer) : smoothed_(trainer.config.metrics.smoothing) {}
  std::string_view name() const override { return "logging"; }

  void train_begin(Trainer& trainer) override {
    const auto& metrics = trainer.config.metrics;
    smoothed_.restore(trainer.state.smoothed_loss);
    const bool wanted =
        metrics.status_line == "on" || (metrics.status_line == "auto" && stderr_is_terminal());
    if (wanted && trainer.is_main()) status_ = std::make_unique<StatusLine>(trainer.log);
    waited_ = trainer.loader->wait_seconds();
  }

  void step_begin(Trainer& trainer) override { meter_.begin_step(); }

  void step_end(Trainer& trainer) override {
    const double waited = trainer.loader->wait_seconds();
    const double seconds =
        meter_.end_step(trainer.batch.tokens_per_step() / trainer.groups->data_ranks(), waited - waited_);
    waited_ = waited;
    smoothed_.add(trainer.last_step.loss);
    trainer.state.smoothed_loss = smoothed_.state();
    if (status_ == nullptr) return;
    seconds_per_step_.add(seconds);
    const double smoothed = seconds_per_step_.value();
    status_->update({trainer.state.step, trainer.total_steps, smoothed_.value(),
                     static_cast<double>(trainer.batch.tokens_per_step()) / smoothed, smoothed});
  }

  void log(Trainer& trainer) override {
    const ThroughputWindow window = meter_.take();
    const double tps = window.tokens_per_second();
    const double tflops = tps * trainer.model_spec.flops_per_token(trainer.batch.seq_len) * 1e-12;
    MetricsRecord record{"train", trainer.state.step, wall_time_now(), {}};
    record.add(metric::loss, trainer.last_step.loss);
    record.add(metric::max_loss, trainer.last_step.max_loss);
    record.add(metric::grad_norm, trainer.last_step.grad_norm);
    record.add(metric::lr, trainer.last_lr);
    record.add(metric::memory_active, static_cast<double>(cpu_memory().peak_bytes) / (1 << 30));
    record.add(metric::memory_resident, static_cast<double>(peak_resident_bytes()) / (1 << 30));
    record.add(metric::tps, tps);
    record.add(metric::tflops, tflops);
    const double peak = trainer.config.metrics.peak_tflops;
    if (peak > 0.0) record.add(metric::mfu, 100.0 * tflops / peak);
    record.add(metric::end_to_end, window.seconds_per_step());
    record.add(metric::data_loading,
               window.data_seconds / static_cast<double>(std::max<int64_t>(1, window.steps)));
    record.add(metric::data_loading_share, window.data_percent());
    record.add(metric::tokens_seen, static_cast<double>(trainer.state.tokens));
    trainer.metrics->write(std::move(record));
  }

  void evaluate(Trainer& trainer) override {
    const EvaluationResult& result = trainer.last_validation;
    MetricsRecord record{"validation", trainer.state.step, wall_time_now(), {}};
    record.add(metric::validation_loss, result.loss);
    record.add(metric::validation_perplexity, result.perplexity);
    if (std::isfinite(result.bits_per_byte))
      record.add(metric::validation_bits_per_byte, result.bits_per_byte);
    record.add(metric::validation_tps, static_cast<double>(result.tokens) / result.seconds);
    trainer.metrics->write(std::move(record));
  }

  void train_end(Trainer& trainer) override {
    status_.reset();
    trainer.metrics->flush();
  }

 private:
  Smoothed smoothed_;
  Smoothed seconds_per_step_{0.9};
  ThroughputMeter meter_;
  std::unique_ptr<StatusLine> status_;
  double waited_ = 0.0;
};

/// Lets the model write every sampling.freq steps.
class SamplingCallback : public Callback {
 public:
  std::string_view name() const override { return "sampling"; }

  void step_end(Trainer& trainer) override {
    const auto& sampling = trainer.config.sampling;
    if (trainer.state.step % sampling.freq != 0) return;
    const int64_t capacity = generation_context(trainer.config);
    Generator generator(trainer.model_spec,
                        plan_samples(trainer.config, trainer.model_spec, capacity, trainer.place),
                        trainer.model, *trainer.store, compute_dtype(trainer.config.precision), capacity);
    GenerationOptions options;
    options.max_tokens = sampling.max_tokens;
    options.temperature = sampling.temperature;
    options.top_k = sampling.top_k;
    options.seed = static_cast<uint64_t>(sampling.seed);
    trainer.log.info("sample at step {}: {}{}", trainer.state.step, sampling.prompt,
                     generate_text(generator, *trainer.tokenizer, sampling.prompt, options));
  }
};

/// Writes the last checkpoint of a completed run as a Hugging Face folder.
class ExportCallback : public Callback {
 public:
  std::string_view name() const override { return "export"; }

  void train_end(Trainer& trainer) override {
    if (!trainer.is_main() || trainer.state.step < trainer.total_steps) return;
    const std::string step = checkpoint_folder_name(trainer.last_saved_step);
    const auto output = std::filesystem::path(trainer.config.run_dir) / "hf" / step;
    if (std::filesystem::exists(output)) {
      return trainer.log.info("{} is there already and is kept", output.string());
    }
    std::filesystem::create_directories(output.parent_path());
    const FoundCheckpoint found{trainer.checkpoint_dir() / step, trainer.last_saved_step};
    const HfExportOptions options = {*dtype_from_name(trainer.config.checkpoint.export_dtype)};
    export_hf(output, trainer.config.model, trainer.model_spec, checkpoint_tensors(found),
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
    const bool traced = steps_ == traced_step || (last && steps_ < traced_step);
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
  static constexpr int traced_step = 3;  // the first ones touch new memory
  std::filesystem::path path_;
  int steps_ = 0;
};

}  // namespace

std::unique_ptr<Callback> make_trace_callback(std::filesystem::path path) {
  return std::make_unique<TraceCallback>(std::move(path));
}

int64_t generation_context(const Config& config) {
  const auto& sampling = config.sampling;
  // A prompt has at most as many tokens as bytes, or the one token of an empty prompt.
  return sampling.freq > 0 ? sampling.max_tokens + static_cast<int64_t>(sampling.prompt.size()) + 1 : 0;
}

void add_builtin_callbacks(Trainer& trainer) {
  trainer.add_callback(std::make_unique<ReportCallback>());
  trainer.add_callback(std::make_unique<LoggingCallback>(trainer));
  if (trainer.config.sampling.freq > 0) trainer.add_callback(std::make_unique<SamplingCallback>());
  if (trainer.config.checkpoint.last_save_in_hf) trainer.add_callback(std::make_unique<ExportCallback>());
}

}  // namespace stepforge
