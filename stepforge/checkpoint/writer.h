// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints while training continues, and deletes old ones.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "stepforge/base/log.h"
#include "stepforge/checkpoint/native.h"

namespace stepforge {

/// The result of a save, the same on every rank.
struct SaveOutcome {
  int64_t step = 0;
  std::string failure;  ///< why there is no checkpoint of this step; empty if it was published
};

/// Used by one thread. Its own thread gives way to training (thread_priority.h). Only one save is in progress at a time: a call that needs the writer waits for its
/// end. Each rank has a writer, and all must save the same steps.
///
///     writer.save(step, stage_checkpoint(model, store, &optimizer, state, writer.reusable()));
class CheckpointWriter {
 public:
  /// Rank 0 creates `dir` and removes the leftovers of a crash during a save. `keep_latest_k` 0 keeps all
  /// steps. `background` false writes inside save(). `ranks` null: one rank. Throws Error if `dir` cannot be
  /// created. `logger` and `ranks` must outlive the writer; `ranks` may not be used elsewhere while a save is
  /// in progress.
  CheckpointWriter(std::filesystem::path dir, int64_t keep_latest_k, Logger& logger, bool background,
                   const CheckpointRanks* ranks = nullptr);
  /// Waits for the save in progress.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Takes the memory for the saves, before the first, and makes its pages in the background.
  void prepare(StagedCheckpoint reserved);

  /// The memory of the last save, or of prepare(), to stage into. Waits for that save. Throws as throw_if_rank_lost()
  /// does.
  StagedCheckpoint reusable();

  /// Writes step-N, then deletes the oldest steps beyond keep_latest_k. Later steps, left by a run that was
  /// resumed from an earlier step, are neither counted nor deleted. After a failure (a full disk) every rank
  /// logs an error and nothing is deleted; the next save tries again. With `keep`, this step, once it is written, takes the
  /// place of the one that keep() named. Throws as throw_if_rank_lost() does.
  void save(int64_t step, StagedCheckpoint staged, bool keep = false);

  /// The step that is not deleted, in addition to the latest ones. Waits for the save in progress.
  void keep(int64_t step);

  /// Waits for the save in progress. False if the last save failed.
  bool wait();

  /// The outcomes of the saves that have ended since the last call, oldest first. Does not wait; one rank may
  /// see an outcome a step earlier than another.
  std::vector<SaveOutcome> take_outcomes();

  /// Throws the PeerError that ended a save: a rank whose process has ended or hangs is missing in training
  /// too, and every further save would fail. Does not wait.
  void throw_if_rank_lost() const;

 private:
  using Clock = std::chrono::steady_clock;
  void start(std::function<void(const std::stop_token&)> work);
  /// `waited`: the seconds for which training waited for this save.
  void write(int64_t step, double waited, bool keep);
  void record(int64_t step, const std::string& failure);
  void delete_old(int64_t step);

  std::filesystem::path dir_;
  int64_t keep_latest_k_;
  Logger& logger_;
  bool background_;
  CheckpointRanks alone_;
  const CheckpointRanks& ranks_;
  bool succeeded_ = true;
  std::mutex outcomes_mutex_;
  std::vector<SaveOutcome> outcomes_;
  std::exception_ptr lost_rank_;
  std::atomic<bool> is_rank_lost_ = false;  ///< set after lost_rank_
  bool warned_of_later_steps_ = false;
  int64_t kept_step_ = -1;
  StagedCheckpoint staged_;                 // thread_ uses this and the members above while it runs
  std::optional<Clock::time_point> asked_;  ///< when the next save was asked for
  std::jthread thread_;
};

}  // namespace stepforge
