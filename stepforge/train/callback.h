// SPDX-License-Identifier: Apache-2.0
// The events of a run, for code that observes or changes it. The start-up report, alarms, log, the best step, samples and export are
// built-in callbacks (train/callback_kinds.h); validation and checkpoints are part of the trainer's loop.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/metrics/record.h"

namespace stepforge {

class Trainer;

/// Override the events of interest. They come in this order:
///
///   init_end                      everything is built, nothing has run
///   load                          a checkpoint was restored (only then)
///   train_begin
///     epoch_begin                 before the first step of an epoch
///       step_begin
///         micro_step_end          the loss of a micro-batch (and its gradients) is known
///         pre_update              only of a PreUpdateCallback
///       step_end                  the weights are the new ones, or the step was skipped
///       log                       every metrics.log_freq steps, after step_end; what callbacks add to the record is written
///                                 with it
///       evaluate                  Trainer::last_validation is that of this step
///       save, save_failed         the checkpoint was published in this folder, or was not. A background save ends during
///                                 a later step, not always the same one on all ranks
///     epoch_end                   after the last step of an epoch
///   train_end                     also after an interruption, not after an error
///   exported, export_failed       the last checkpoint was written as a Hugging Face folder, or was not: an error of the
///                                 run that follows. Rank 0 only
///
/// A callback with a state that a resumed run needs returns it from state(), which is called on every rank when a
/// checkpoint is staged, and gets what all ranks returned in restore(), before load. The run that resumes may have another
/// number of ranks.
///
/// All events are emitted on the thread that runs the trainer. For each event, callbacks are called in the
/// order of training.callbacks, then those of Trainer::add_callback.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual std::string_view name() const = 0;
  virtual void init_end(Trainer& trainer) {}
  virtual void load(Trainer& trainer) {}
  virtual void train_begin(Trainer& trainer) {}
  virtual void epoch_begin(Trainer& trainer) {}
  virtual void step_begin(Trainer& trainer) {}
  virtual void micro_step_end(Trainer& trainer) {}
  virtual void step_end(Trainer& trainer) {}
  virtual void log(Trainer& trainer, MetricsRecord& record) {}
  virtual void evaluate(Trainer& trainer) {}
  virtual void save(Trainer& trainer, const std::filesystem::path& folder) {}
  virtual void save_failed(Trainer& trainer, const std::string& reason) {}
  virtual void epoch_end(Trainer& trainer) {}
  virtual void train_end(Trainer& trainer) {}
  virtual void exported(Trainer& trainer, const std::filesystem::path& folder) {}
  virtual void export_failed(Trainer& trainer, const std::string& reason) {}
  /// null: there is no state. In the checkpoint it is found by name().
  virtual Json state(Trainer& trainer) { return nullptr; }
  /// `of_ranks`: what each rank of the run that saved returned.
  virtual void restore(Trainer& trainer, const std::vector<Json>& of_ranks) {}
};

/// A callback that acts between the gradients and the update of a step. While one is added, each step waits
/// there until the host knows its numbers; without one it knows them at the end of the step.
class PreUpdateCallback : public Callback {
 public:
  /// Trainer::last_step has this step's loss and norm, both finite; the weights are still the old ones. Not
  /// called in a step that is skipped.
  virtual void pre_update(Trainer& trainer) = 0;
};

class CallbackList {
 public:
  void add(std::unique_ptr<Callback> callback) {
    if (auto* before = dynamic_cast<PreUpdateCallback*>(callback.get())) before_update_.push_back(before);
    callbacks_.push_back(std::move(callback));
  }
  template <typename... Details>
  void emit(void (Callback::*event)(Trainer&, Details...), Trainer& trainer,
            std::type_identity_t<Details>... details) const {
    for (const auto& callback : callbacks_) (callback.get()->*event)(trainer, details...);
  }
  /// By name; names without a state are missing. Throws Error if two callbacks with a state have one name.
  Json states(Trainer& trainer) const;
  /// `of_ranks`: what states() returned on each rank. Returns the names that no callback has.
  std::vector<std::string> restore(Trainer& trainer, const std::vector<Json>& of_ranks) const;
  std::vector<std::string> names() const;
  bool has_pre_update() const { return !before_update_.empty(); }
  void emit_pre_update(Trainer& trainer) const {
    for (auto* callback : before_update_) callback->pre_update(trainer);
  }

 private:
  std::vector<std::unique_ptr<Callback>> callbacks_;
  std::vector<PreUpdateCallback*> before_update_;  ///< those of `callbacks_`
};

}  // namespace stepforge
