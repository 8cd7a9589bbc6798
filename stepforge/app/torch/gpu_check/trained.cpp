// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/gpu_check/trained.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include "stepforge/base/files.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/known_model.h"

namespace stepforge::gpu_check {

namespace {

std::string hash_of(const at::Tensor& values) {
  const at::Tensor on_host = values.cpu();
  const auto* bytes = static_cast<const std::byte*>(on_host.const_data_ptr());
  return content_hash(std::span(bytes, on_host.nbytes()));
}

std::string hashes_of(const Trainer& trainer) {
  std::string all = std::to_string(trainer.optimizer->steps());
  for (size_t unit = 0; unit < trainer.store->size(); ++unit) {
    const UnitStore& storage = trainer.store->unit(unit);
    all += format(" {}", hash_of(storage.master()));
    if (!storage.trained()) continue;
    for (const at::Tensor& slot : trainer.optimizer->state(unit).slots()) all += format(" {}", hash_of(slot));
  }
  return all;
}

class Watch : public Callback {
 public:
  Watch(const Recipe& recipe, Trained& trained) : recipe_(recipe), trained_(trained) {}
  std::string_view name() const override { return "gpu-check"; }

  void step_begin(Trainer& trainer) override {
    if (recipe_.began) recipe_.began(trainer);
  }
  void step_end(Trainer& trainer) override {
    trained_.losses.push_back(trainer.last_step.loss);
    trained_.norms.push_back(trainer.last_step.grad_norm);
    if (recipe_.stepped) recipe_.stepped(trainer);
  }
  void train_end(Trainer& trainer) override {
    if (recipe_.hashed) trained_.weights = hashes_of(trainer);
    if (recipe_.finished) recipe_.finished(trainer);
  }

 private:
  const Recipe& recipe_;
  Trained& trained_;
};

}  // namespace

Strings small_model() {
  return {"preset=debug",
          "data.synthetic_tokens=4096",
          "model.dim=32",
          "model.n_layers=2",
          "model.n_heads=2",
          "model.n_kv_heads=1",
          "model.ffn_dim=48",
          "training.seq_len=32",
          "training.local_batch_size=2",
          "training.steps=20",
          "training.global_batch_size=4",
          "checkpoint.async=false",
          "checkpoint.enable=false"};
}

Strings overrides_of(const Check& check, const Recipe& recipe) {
  Strings all = {format("training.device={}", recipe.on == On::device ? check.device : "cpu"),
                 format("run_dir={}", (check.scratch / recipe.name).string()),
                 format("data.cache_dir={}", (check.scratch / "cache").string()), "metrics.status_line=off"};
  const auto add = [&all](const Strings& more) { all.insert(all.end(), more.begin(), more.end()); };
  add(check.of_all);
  if (recipe.on == On::device) add(check.of_device);
  add(recipe.options);
  return all;
}

Trained train(const Check& check, const Recipe& recipe) {
  const Strings overrides = overrides_of(check, recipe);
  Logger log;
  log.quiet_terminal();
  Trainer trainer(load_config(std::nullopt, overrides, ConfigUse::train, settings_from_model), log, nullptr);
  Trained trained;
  trainer.add_callback(std::make_unique<Watch>(recipe, trained));
  trainer.build();
  if (recipe.last_step) trainer.total_steps = std::min(*recipe.last_step, trainer.total_steps);
  trainer.run();
  return trained;
}

void forget(const Check& check, const std::string& name) {
  std::filesystem::remove_all(check.scratch / name);
}

double largest_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]) / std::abs(expected[i]);
    if (actual[i] == expected[i]) continue;
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

double compare(const Check& check, Findings& found, const std::string& what,
               const std::vector<double>& actual, const std::vector<double>& expected, double tolerance) {
  const double allowed = check.exact() ? 0 : tolerance;
  const double difference = largest_difference(actual, expected);
  if (expected.empty()) {
    found.fail("{}: no step ran", what);
  } else if (difference > allowed) {
    found.fail("{}: losses differ by {:.2g} of their size, more than {:.2g}; the last are {} and {}", what,
               difference, allowed, actual.empty() ? 0 : actual.back(), expected.back());
  }
  return difference;
}

}  // namespace stepforge::gpu_check
