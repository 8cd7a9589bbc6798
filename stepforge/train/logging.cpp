// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/logging.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/machine.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/metrics/console.h"
#include "stepforge/metrics/names.h"
#include "stepforge/metrics/record.h"
#include "stepforge/metrics/smoothed.h"
#include "stepforge/metrics/throughput.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/train/communication_window.h"
#include "stepforge/train/mtp_losses.h"
#include "stepforge/train/router_monitor.h"
#include "stepforge/train/source_losses.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

class LoggingCallback : public Callback {
 public:
  std::string_view name() const override { return "logging"; }

  void init_end(Trainer& trainer) override {
    const ModelStore& store = *trainer.store;
    // Scores are no losses of single tokens.
    const bool scores = trainer.config.model.scores();
    sources_ = std::make_unique<SourceLosses>(
        scores ? std::vector<std::string>() : trainer.data.train->source_names(), store.device());
    trainer.train_step->on_losses = [this](const Batch& batch, const at::Tensor& token_loss) {
      sources_->add(batch, token_loss);
    };
    if (const int depths = trainer.train_program.ahead; depths > 0) {
      depths_ = std::make_unique<MtpLosses>(depths, store.device());
      trainer.train_step->on_ahead_losses = [this](int ahead, const BatchTensors& batch,
                                                   const at::Tensor& token_loss) {
        depths_->add(ahead, batch, token_loss);
      };
    }
    if (trainer.config.preference.enabled()) {
      pairs_ = at::zeros({kPairFigures}, at::device(store.device()).dtype(at::kDouble));
      trainer.train_step->on_pairs = [this](const PairReport& report) { pairs_.add_(report.figures); };
    }
    if (trainer.teacher != nullptr) {
      divergence_ = at::zeros({2}, at::device(store.device()).dtype(at::kDouble));
      trainer.train_step->on_divergence = [this](const Batch& batch, const at::Tensor& divergence) {
        divergence_.select(0, 0).add_(divergence.sum(at::kDouble));
        divergence_.select(0, 1).add_(static_cast<double>(batch.valid_labels));
      };
    }
    routers_ = make_router_monitor(trainer.config, trainer.job.layout.dims, store);
    if (routers_ == nullptr) return;
    trainer.train_step->on_router_report = [this](const RouterReport& report) { routers_->add(report); };
  }

  void train_begin(Trainer& trainer) override {
    const auto& metrics = trainer.config.metrics;
    const bool wanted = metrics.status_line == StatusLineMode::automatic
                            ? stderr_is_terminal()
                            : metrics.status_line == StatusLineMode::on;
    if (wanted && trainer.is_main()) status_ = std::make_unique<StatusLine>(trainer.log);
    waited_ = trainer.loader->wait_seconds();
  }

  void step_begin(Trainer& trainer) override {
    communication_.begin_step(*trainer.groups);
    meter_.begin_step();
  }

  void step_end(Trainer& trainer) override {
    communication_.end_step(*trainer.groups);
    const double waited = trainer.loader->wait_seconds();
    const double seconds = meter_.end_step(trainer.last_step.tokens, trainer.last_flops, waited - waited_);
    labels_ += trainer.last_step.valid_labels;
    waited_ = waited;
    if (status_ == nullptr) return;
    seconds_per_step_.add(seconds, 0.9);
    const double smoothed = seconds_per_step_.value();
    status_->update({trainer.state.step, trainer.total_steps, trainer.state.smoothed_loss.value(),
                     static_cast<double>(trainer.last_step.tokens) / smoothed, smoothed});
  }

  void log(Trainer& trainer, MetricsRecord& record) override {
    const ThroughputWindow window = meter_.take();
    Communicator* ranks = trainer.all_ranks.get();
    const bool has_loss = trainer.last_step.valid_labels > 0;
    if (has_loss) record.add(metric::loss, trainer.last_step.loss);
    if (has_loss) record.add(metric::max_loss, trainer.last_step.max_loss);
    for (const auto& [name, loss] : sources_->take(ranks)) record.add(metric::source_loss(name), loss);
    if (depths_ != nullptr) depths_->log(ranks, record);
    if (pairs_.defined()) log_pairs(trainer.preferences.loss, ranks, record);
    if (divergence_.defined()) log_divergence(ranks, record);
    if (routers_ != nullptr) routers_->log(ranks, record);
    if (has_loss) record.add(metric::grad_norm, trainer.last_step.grad_norm);
    record.add(metric::lr, trainer.last_lr);
    record.add(metric::memory_active,
               static_cast<double>(trainer.device.backend->memory().peak_bytes) / (1 << 30));
    record.add(metric::memory_resident, static_cast<double>(peak_resident_bytes()) / (1 << 30));
    record.add(metric::tps, window.tokens_per_second() / trainer.place.world_size);
    record.add(metric::job_tps, window.tokens_per_second());
    const auto labels = static_cast<double>(std::exchange(labels_, 0));
    record.add(metric::job_lps, window.seconds > 0.0 ? labels / window.seconds : 0.0);
    const auto tokens = static_cast<double>(window.tokens);
    const auto room = static_cast<double>(window.steps * trainer.job.batch.tokens_per_step());
    record.add(metric::padding_share, room > 0.0 ? 100.0 * (room - tokens) / room : 0.0);
    record.add(metric::label_share, tokens > 0.0 ? 100.0 * labels / tokens : 0.0);
    record.add(metric::tflops, window.tflops());
    const double peak = trainer.config.metrics.peak_tflops;
    if (peak > 0.0) record.add(metric::mfu, 100.0 * window.tflops() / peak);
    record.add(metric::end_to_end, window.seconds_per_step());
    record.add(metric::data_loading,
               window.data_seconds / static_cast<double>(std::max<int64_t>(1, window.steps)));
    record.add(metric::data_loading_share, window.data_percent());
    communication_.take(record, *trainer.groups, std::max<int64_t>(1, window.steps));
    record.add(metric::tokens_seen, static_cast<double>(trainer.state.tokens));
    record.add(metric::labels_seen, static_cast<double>(trainer.state.labels));
  }

  void evaluate(Trainer& trainer) override {
    const EvaluationResult& result = trainer.last_validation;
    MetricsRecord record{"validation", trainer.state.step, wall_time_now(), {}};
    record.add(metric::validation_loss, result.loss);
    const bool on_pairs = trainer.config.preference.enabled();
    if (on_pairs)
      add_pair_metrics(trainer.preferences.loss, trainer.last_pairs.figures, metric::validation_prefix,
                       record);
    if (!on_pairs) record.add(metric::validation_perplexity, result.perplexity);
    if (!on_pairs && std::isfinite(result.bits_per_byte))
      record.add(metric::validation_bits_per_byte, result.bits_per_byte);
    record.add(metric::validation_tps, static_cast<double>(result.tokens) / result.seconds);
    trainer.metrics->write(std::move(record));
  }

  void train_end(Trainer& trainer) override {
    status_.reset();
    trainer.metrics->flush();
  }

 private:
  /// `sums` over all ranks, which then begin anew.
  static at::Tensor take_sums(const at::Tensor& sums, Communicator* ranks) {
    const at::Tensor all = sums.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    if (ranks != nullptr) ranks->all_reduce(bytes_of(all), DType::f64);
    sums.zero_();
    return all;
  }

  void log_divergence(Communicator* ranks, MetricsRecord& record) {
    const at::Tensor sums = take_sums(divergence_, ranks);
    const auto* values = sums.const_data_ptr<double>();
    if (values[1] > 0.0) record.add(metric::distillation_kl, values[0] / values[1]);
  }

  void log_pairs(const PairLoss& loss, Communicator* ranks, MetricsRecord& record) {
    const at::Tensor sums = take_sums(pairs_, ranks);
    add_pair_metrics(loss, {sums.const_data_ptr<double>(), static_cast<size_t>(kPairFigures)}, "", record);
  }

  Smoothed seconds_per_step_;
  ThroughputMeter meter_;
  CommunicationWindow communication_;
  std::unique_ptr<StatusLine> status_;
  double waited_ = 0.0;
  // Since the last record:
  int64_t labels_ = 0;
  std::unique_ptr<SourceLosses> sources_;
  std::unique_ptr<MtpLosses> depths_;  ///< null without multi-token prediction
  at::Tensor pairs_;                   ///< sums of PairReport::figures; undefined without pairs of answers
  at::Tensor divergence_;              ///< sum over labels, labels; undefined without a teacher
  std::unique_ptr<RouterMonitor> routers_;  ///< null if there is nothing to log of routers
};

}  // namespace

std::unique_ptr<Callback> make_logging() {
  return std::make_unique<LoggingCallback>();
}

}  // namespace stepforge
