// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/writer.h"

#include <chrono>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/thread_priority.h"
#include "stepforge/tensorfile/manifest.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Removes the folders of interrupted saves and of interrupted deletions.
void remove_leftovers(const fs::path& dir, Logger& logger) {
  for (const fs::path& path : entries_of(dir)) {
    const auto target = staged_target(path);
    if (!target || !checkpoint_step(target->filename().string())) continue;
    if (remove_abandoned(path)) logger.info("removed {}, left by an unfinished save", path.string());
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path dir, int64_t keep_latest_k, Logger& logger, bool background,
                                   const CheckpointRanks* ranks)
    : dir_(std::move(dir)),
      keep_latest_k_(keep_latest_k),
      logger_(logger),
      background_(background),
      ranks_(ranks == nullptr ? alone_ : *ranks) {
  if (ranks_.rank() != 0) return;
  std::error_code failure;
  fs::create_directories(dir_, failure);
  if (failure || !fs::is_directory(dir_)) {
    throw Error(format("cannot create the checkpoint folder {}: {}", dir_.string(),
                       failure ? failure.message() : "it is not a folder"));
  }
  remove_leftovers(dir_, logger_);
}

CheckpointWriter::~CheckpointWriter() {
  wait();
}

void CheckpointWriter::prepare(StagedCheckpoint reserved) {
  wait();
  staged_ = std::move(reserved);
  if (!background_) return;
  try {
    start([this](const std::stop_token& stop) { staged_.make_pages(stop); });
  } catch (const std::system_error&) {
    // The first save makes them.
  }
}

StagedCheckpoint CheckpointWriter::reusable() {
  asked_ = Clock::now();
  wait();
  throw_if_rank_lost();
  return std::move(staged_);
}

void CheckpointWriter::save(int64_t step, StagedCheckpoint staged, bool keep) {
  const Clock::time_point asked = std::exchange(asked_, std::nullopt).value_or(Clock::now());
  wait();
  throw_if_rank_lost();
  staged_ = std::move(staged);
  if (background_) {
    const std::chrono::duration<double> waited = Clock::now() - asked;
    try {
      start([this, step, waited, keep](const std::stop_token&) { write(step, waited.count(), keep); });
      return;
    } catch (const std::system_error& failure) {
      logger_.warning("cannot start a thread to save step {} ({}): training waits for the save", step,
                      failure.what());
    }
  }
  write(step, 0.0, keep);
}

void CheckpointWriter::keep(int64_t step) {
  wait();
  kept_step_ = step;
}

void CheckpointWriter::start(std::function<void(const std::stop_token&)> work) {
  thread_ = std::jthread([work = std::move(work)](const std::stop_token& stop) {
    lower_thread_priority();
    work(stop);
  });
}

bool CheckpointWriter::wait() {
  thread_.request_stop();  // a save goes on to its end all the same
  if (thread_.joinable()) thread_.join();
  return succeeded_;
}

void CheckpointWriter::throw_if_rank_lost() const {
  if (is_rank_lost_) std::rethrow_exception(lost_rank_);
}

void CheckpointWriter::write(int64_t step, double waited, bool keep) {
  try {
    const Clock::time_point begin = Clock::now();
    const int64_t bytes = write_checkpoint(dir_, step, staged_, ranks_);
    const std::chrono::duration<double> duration = Clock::now() - begin;
    if (keep) kept_step_ = step;
    record(step, "");
    if (ranks_.rank() != 0) return;
    logger_.info("saved {}: {} in {:.2f} s ({:.2f} GB/s){}", (dir_ / checkpoint_folder_name(step)).string(),
                 human_bytes(bytes), duration.count(), static_cast<double>(bytes) / 1e9 / duration.count(),
                 background_ ? format(", training waited {:.2f} s", waited) : "");
  } catch (const PeerError& failure) {
    lost_rank_ = std::current_exception();
    is_rank_lost_ = true;
    record(step, failure.what());
    logger_.error("CHECKPOINT NOT SAVED at step {}: {}. Older checkpoints are kept", step, failure.what());
    return;
  } catch (const std::exception& failure) {
    record(step, failure.what());
    logger_.error(
        "CHECKPOINT NOT SAVED at step {}: {}. Training continues, older checkpoints are kept; "
        "the next save is at the next interval",
        step, failure.what());
    return;
  }
  try {
    delete_old(step);
  } catch (const std::exception& failure) {
    logger_.warning("old checkpoints could not be deleted: {}", failure.what());
  }
}

void CheckpointWriter::record(int64_t step, const std::string& failure) {
  succeeded_ = failure.empty();
  const std::lock_guard lock(outcomes_mutex_);
  outcomes_.push_back({step, failure});
}

std::vector<SaveOutcome> CheckpointWriter::take_outcomes() {
  const std::lock_guard lock(outcomes_mutex_);
  return std::exchange(outcomes_, {});
}

void CheckpointWriter::delete_old(int64_t step) {
  int64_t kept = 0;
  for (const CheckpointFolder& folder : list_checkpoints(dir_)) {
    if (folder.step > step) {
      if (!std::exchange(warned_of_later_steps_, true)) {
        logger_.warning(
            "{} is beyond step {}: a resume would use it; remove it if it belongs to an abandoned run",
            folder.path.string(), step);
      }
      continue;
    }
    ++kept;
    if (keep_latest_k_ > 0 && kept > keep_latest_k_ && folder.step != kept_step_)
      remove_whole_folder(folder.path);
  }
}

}  // namespace stepforge
