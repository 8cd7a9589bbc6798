// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/best_step.h"

#include <limits>
#include <string>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

/// A number as JSON, which has no infinity.
Json json_of(double loss) {
  return loss == kNone ? Json(nullptr) : Json(loss);
}
double loss_of(const JsonReader& reader, std::string_view field) {
  return reader.has(field) ? reader[field].number() : kNone;
}

class BestStepCallback : public Callback {
 public:
  std::string_view name() const override { return "best"; }

  void train_begin(Trainer& trainer) override {
    if (step_ >= 0 && trainer.config.checkpoint.keep_best && trainer.checkpoints != nullptr)
      trainer.checkpoints->keep(step_);
    if (!is_over(trainer.config)) return;
    trainer.end_early();
    trainer.log.info(
        "nothing to do: the run ended early at step {}; a higher training.early_stopping.patience trains "
        "longer",
        trainer.state.step);
  }

  void evaluate(Trainer& trainer) override {
    const EarlyStoppingConfig& rule = trainer.config.training.early_stopping;
    const double loss = trainer.last_validation.loss;
    if (loss < loss_) {
      loss_ = loss;
      step_ = trainer.state.step;
      if (trainer.config.checkpoint.keep_best) trainer.keep_this_step();
    }
    if (loss < gained_ - rule.min_gain) {
      gained_ = loss;
      without_gain_ = 0;
      return;
    }
    ++without_gain_;
    if (!is_over(trainer.config)) return;
    trainer.log.info(
        "early stopping at step {} of {}: the validation loss, {:.4f}, did not fall {}below {:.4f} in {} "
        "validations",
        trainer.state.step, trainer.total_steps, loss,
        rule.min_gain > 0 ? format("by more than {} ", rule.min_gain) : "", gained_, without_gain_);
    trainer.end_early();
  }

  void train_end(Trainer& trainer) override {
    if (step_ < 0) return;
    const auto folder = trainer.checkpoint_dir() / checkpoint_folder_name(step_);
    const bool is_kept = trainer.config.checkpoint.keep_best && std::filesystem::exists(folder);
    trainer.log.info("lowest validation loss: {:.4f} at step {}{}", loss_, step_,
                     is_kept ? ", kept in " + folder.string() : "");
  }

  Json state(Trainer&) override {
    return {{"loss", json_of(loss_)},
            {"step", step_},
            {"gained", json_of(gained_)},
            {"without_gain", without_gain_}};
  }

  void restore(Trainer&, const std::vector<Json>& of_ranks) override {
    const JsonReader reader(of_ranks.front(), "the state of the callback best");
    loss_ = loss_of(reader, "loss");
    step_ = reader["step"].integer(-1, std::numeric_limits<int64_t>::max());
    gained_ = loss_of(reader, "gained");
    without_gain_ = reader["without_gain"].count();
  }

 private:
  bool is_over(const Config& config) const {
    const int64_t patience = config.training.early_stopping.patience;
    return patience > 0 && without_gain_ >= patience;
  }

  double loss_ = kNone;       ///< the lowest
  int64_t step_ = -1;         ///< whose it is
  double gained_ = kNone;     ///< the last that fell by more than min_gain
  int64_t without_gain_ = 0;  ///< validations since
};

}  // namespace

std::unique_ptr<Callback> make_best_step(const Config& config) {
  const bool is_needed = config.checkpoint.keep_best || config.training.early_stopping.patience > 0;
  return is_needed ? std::make_unique<BestStepCallback>() : nullptr;
}

}  // namespace stepforge
