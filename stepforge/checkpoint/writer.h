// Saves checkpoints while training goes on, and deletes old ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "stepforge/base/log.h"
#include "stepforge/checkpoint/native.h"

namespace stepforge {

/// How a save ended.
struct SaveOutcome {
  int64_t step = -1;
  std::string failure;  ///< "" if step-N is published
};

/// Used by one thread. One save is under way at a time: whatever needs the writer meanwhile waits for its
/// end. Of several ranks each has a writer, and all save the same steps.
///
///     writer.save(step, stage_checkpoint(model, store, &optimizer, state, writer.reusable()));
class CheckpointWriter {
 public:
  /// Rank 0 makes `dir` and removes what saves cut short by a crash left there. `keep_latest_k` 0 keeps all.
  /// `background` false writes inside save(). `ranks` null: this rank alone. Throws Error if `dir` cannot be
  /// made. `logger` and `ranks` must outlive it; nobody else may use `ranks` while a save is under way.
  CheckpointWriter(std::filesystem::path dir, int64_t keep_latest_k, Logger& logger, bool background,
                   const CheckpointRanks* ranks = nullptr);
  /// Waits for the save under way.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The memory of the last save, to be staged into again. Waits for its end. Throws as throw_if_rank_lost().
  StagedCheckpoint reusable();

  /// Writes step-N, then deletes the oldest steps beyond keep_latest_k. Steps beyond this one, of a run that
  /// went on from an earlier step, are neither counted nor deleted. A failure (a full disk) is an error line
  /// in the log of every rank; nothing is deleted then, and the next save tries anew. Throws as
  /// throw_if_rank_lost().
  void save(int64_t step, StagedCheckpoint staged);

  /// Waits for the save under way. False if the last save failed.
  bool wait();

  /// How the last save ended; nullopt if it is under way or was asked for before. Does not wait.
  std::optional<SaveOutcome> take_outcome();

  /// Throws the PeerError that ended a save: a rank that is gone or hangs is missing in training too, and no
  /// save can follow. Any time, without waiting.
  void throw_if_rank_lost() const;

 private:
  void write(int64_t step);
  void end(int64_t step, std::string failure);
  void delete_old(int64_t step);

  std::filesystem::path dir_;
  int64_t keep_latest_k_;
  Logger& logger_;
  bool background_;
  CheckpointRanks alone_;
  const CheckpointRanks& ranks_;
  bool succeeded_ = true;
  std::exception_ptr lost_rank_;
  std::atomic<bool> is_rank_lost_ = false;  ///< set after lost_rank_
  std::mutex outcome_mutex_;
  std::optional<SaveOutcome> outcome_;
  bool warned_of_later_steps_ = false;
  StagedCheckpoint staged_;  // like everything below dir_, belongs to thread_ while it runs
  std::thread thread_;
};

}  // namespace stepforge
