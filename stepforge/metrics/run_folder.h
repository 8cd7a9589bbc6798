// SPDX-License-Identifier: Apache-2.0
// The folder of one run: resolved config, history of starts, metrics and log. One process at a time may use
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/base/log.h"

namespace stepforge {

/// One start of a run, as stored in run.json.
struct RunStart {
  std::string host;
  int64_t pid = 0;
  /// ISO 8601 in UTC: "2026-03-01T12:30:00Z".
  std::string time;
  std::string version;
  std::string commit;
  /// The step from which it continued (0 for a new run), and the last step it finished.
  int64_t begin_step = 0;
  int64_t end_step = 0;
  /// The last step with a published checkpoint; 0 if there is none.
  int64_t saved_step = 0;
  /// The id of the launcher, the same in all its restarts; "" without a launcher.
  std::string launch_id;
  /// Tokens of the run up to end_step; tokens of steps that a resume repeated count once.
  /// Padding is not counted.
  int64_t tokens = 0;
  /// Labels of the run up to end_step, counted in the same way; 0 in older files.
  int64_t labels = 0;
  /// For each data source, what it holds and what was left out; null in older files.
  Json data;
  /// Seconds of this start and all before it, repeated steps included.
  double seconds = 0;
  /// "running", then "completed", "interrupted" or "failed: …"; "died" if the process ended without saying
  /// why.
  std::string exit_reason;
};

/// Opens a run folder for one process: creates it, checks that it can be written, and locks it against a
/// second process. The lock ends with the object or the process.
class RunFolder {
 public:
  /// A damaged run.json is renamed to run.json.damaged, with a warning, and a new history begins. Throws
  /// UsageError if the path is not a folder, cannot be written, or is locked by another process (which is
  /// named), and Error if run.json has another format version. `logger` must outlive the object.
  RunFolder(std::filesystem::path path, Logger& logger);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path config_file() const { return path_ / "config.toml"; }
  std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path log_file() const { return path_ / "log.txt"; }
  std::filesystem::path history_file() const { return path_ / "run.json"; }

  /// The target of the folder of checkpoints if it is a link (to another disk, say); "" if it is not a link. Throws
  /// UsageError if the link belongs to another user, or leads into another run, whose checkpoints this one would delete.
  std::filesystem::path checkpoint_link(const std::string& name) const;

  /// Writes config.toml atomically. Throws Error.
  void write_config(std::string_view toml) const;

  /// Adds a start to the history: its version, commit, launch_id, data, begin_step, and the tokens and labels up to that step;
  /// the rest is filled in. An earlier start that is still "running" becomes "died", since this process holds
  /// the lock. Throws Error if run.json cannot be written.
  void begin(RunStart start);
  /// Updates the start of begin(): last finished step, tokens and labels of the whole run, seconds of this start. Logs a
  /// warning if the disk cannot be written. Call it after begin().
  void progress(int64_t end_step, int64_t tokens, int64_t labels, double seconds);
  /// A checkpoint of `step` was published. Like progress(), it logs a warning if the disk cannot be written.
  /// Does nothing before begin().
  void saved(int64_t step);
  /// How the start ended. Like progress(), it logs a warning if the disk cannot be written.
  void finish(std::string_view exit_reason);

  const std::vector<RunStart>& history() const { return history_; }

 private:
  void lock();
  void load_history();
  void save() const;
  void save_or_warn();

  std::filesystem::path path_;
  Logger& logger_;
  int lock_descriptor_ = -1;
  std::vector<RunStart> history_;
  double earlier_seconds_ = 0;  ///< of all earlier starts
  bool has_begun_ = false;
};

/// The history in a run folder, without opening it for training; empty if there is none. Throws FormatError
/// naming file and field if it is malformed, Error if it has another format version.
std::vector<RunStart> read_run_history(const std::filesystem::path& run_folder);

}  // namespace stepforge
