// SPDX-License-Identifier: Apache-2.0
// Small runs whose steps take milliseconds, and helpers to inspect them.
#pragma once

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/config/load.h"
#include "stepforge/metrics/jsonl.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/train/trainer.h"
#include "tests/support/long_tests.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {

/// Arguments of a run with synchronous checkpoints and without a status line.
/// STEPFORGE_TEST_DEVICE, on which training runs of tests compute; "" for the CPU with its own kernels.
inline std::string test_device() {
  const char* device = std::getenv("STEPFORGE_TEST_DEVICE");
  return device == nullptr ? "" : device;
}

inline Strings trainer_run(const std::filesystem::path& run_dir) {
  const Strings device = test_device().empty()
                             ? Strings{}
                             : Strings{"training.device=" + test_device(), "kernels.reference=true"};
  return small_run(run_dir) + Strings{"checkpoint.async=false", "metrics.status_line=off"} + device;
}

/// `lines` lines of different lengths.
inline std::string some_text(int lines) {
  std::string text;
  for (int line = 0; line < lines; ++line) {
    text += format("Line {} of the tale tells of {} ships{}\n", line, line * line % 17,
                   std::string(static_cast<size_t>(line * 7 % 23), '.'));
  }
  return text;
}

/// Hashes of all weights and moments of the whole model, and the number of updates. A collective if ranks
/// share the model.
inline std::string bits_of(const Trainer& trainer) {
  std::string all = std::to_string(trainer.optimizer->steps());
  const auto append = [&all](const at::Tensor& values) {
    const at::Tensor tensor = values.cpu();
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    all += ' ';
    all += content_hash(std::span(bytes, tensor.nbytes()));
  };
  for (size_t unit = 0; unit < trainer.store->size(); ++unit) {
    const UnitStore& storage = trainer.store->unit(unit);
    append(storage.whole(storage.master_values()));
    if (!storage.trained()) continue;
    for (const at::Tensor& slot : trainer.optimizer->state(unit).slots())
      append(slot.numel() == storage.shard_size() ? storage.whole(slot) : slot);
  }
  return all;
}

/// The input and the results of one step.
struct StepRecord {
  int64_t step = 0;
  std::vector<int32_t> tokens;  ///< tokens, labels and document boundaries of all micro-batches
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  int64_t tokens_seen = 0;
  std::string bits;

  /// Compares bits, so that NaN equals NaN.
  bool operator==(const StepRecord& other) const {
    const auto same = [](double left, double right) {
      return std::bit_cast<uint64_t>(left) == std::bit_cast<uint64_t>(right);
    };
    return step == other.step && tokens == other.tokens && same(loss, other.loss) &&
           same(grad_norm, other.grad_norm) && same(lr, other.lr) && tokens_seen == other.tokens_seen &&
           bits == other.bits;
  }
};

inline void PrintTo(const StepRecord& record, std::ostream* out) {
  *out << format("step {}: {} ids {}, loss {}, norm {}, rate {}, {} tokens seen, {}", record.step,
                 record.tokens.size(), content_hash(std::as_bytes(std::span(record.tokens))), record.loss,
                 record.grad_norm, record.lr, record.tokens_seen, record.bits);
}

/// A loader that records the ids that it serves.
class RecordingLoader : public PrefetchLoader {
 public:
  RecordingLoader(const Trainer& trainer, std::vector<int32_t>& served)
      : PrefetchLoader(trainer.data.train, trainer.job.batch, 2), served_(served) {}
  Batch next() override {
    Batch batch = PrefetchLoader::next();
    for (const auto* ids : {&batch.tokens, &batch.labels, &batch.cu_seqlens}) {
      served_.insert(served_.end(), ids->begin(), ids->end());
    }
    return batch;
  }

 private:
  std::vector<int32_t>& served_;
};

/// Calls a function when everything is built.
class CallAtStart : public Callback {
 public:
  explicit CallAtStart(std::function<void(Trainer&)> at_start) : at_start_(std::move(at_start)) {}
  std::string_view name() const override { return "test"; }
  void init_end(Trainer& trainer) override { at_start_(trainer); }

 private:
  std::function<void(Trainer&)> at_start_;
};

/// Calls a function at the end of each step.
class CallAt : public Callback {
 public:
  explicit CallAt(std::function<void(Trainer&)> at_step_end) : at_step_end_(std::move(at_step_end)) {}
  std::string_view name() const override { return "test"; }
  void step_end(Trainer& trainer) override { at_step_end_(trainer); }

 private:
  std::function<void(Trainer&)> at_step_end_;
};

/// Runs `more` after the standard build step `name`. Call before build().
inline void after_build_step(Trainer& trainer, std::string_view name, std::function<void(Trainer&)> more) {
  for (const Trainer::BuildStep& step : trainer.build_steps()) {
    if (step.name != name) continue;
    return trainer.replace_build_step(step.name,
                                      [standard = step.build, more = std::move(more)](Trainer& built) {
                                        standard(built);
                                        more(built);
                                      });
  }
  FAIL() << "there is no build step " << name;
}

/// A trainer with its log, which records every step.
class TestRun {
 public:
  explicit TestRun(const Strings& args, const InterruptWatcher* interrupts = nullptr, World* world = nullptr)
      : run_dir_(load_config(std::nullopt, args, {}, settings_from_model).config.run_dir),
        trainer_(load_config(std::nullopt, args, ConfigUse::train, settings_from_model), log_, interrupts,
                 world) {
    trainer_.replace_build_step("loader", [this](Trainer& trainer) {
      trainer.loader = std::make_unique<RecordingLoader>(trainer, served_);
    });
  }

  Trainer& trainer() { return trainer_; }
  Trainer& build() {
    trainer_.build();
    trainer_.add_callback(std::make_unique<CallAt>([this](Trainer& trainer) { record(trainer); }));
    return trainer_;
  }
  /// Builds and runs, to the end or until `last_step` steps are done.
  std::vector<StepRecord> run(std::optional<int64_t> last_step = {}) {
    build();
    if (last_step) trainer_.total_steps = std::min(*last_step, trainer_.total_steps);
    trainer_.run();
    return records;
  }

  /// The contents of the log file so far.
  std::string log_text() {
    log_.flush();
    return read_file(run_dir_ / "log.txt");
  }
  Logger& log() { return log_; }

  std::vector<StepRecord> records;

 private:
  void record(const Trainer& trainer) {
    records.push_back({trainer.state.step, std::exchange(served_, {}), trainer.last_step.loss,
                       trainer.last_step.grad_norm, trainer.last_lr, trainer.state.tokens, bits_of(trainer)});
  }

  std::filesystem::path run_dir_;
  Logger log_;
  std::vector<int32_t> served_;
  Trainer trainer_;
};

}  // namespace stepforge::testing
