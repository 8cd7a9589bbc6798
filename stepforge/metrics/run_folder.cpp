// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/run_folder.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kFormatVersion = 1;
constexpr std::string_view kRunning = "running";

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string utc_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

Json to_json(const RunStart& start) {
  return {{"host", start.host},           {"pid", start.pid},
          {"time", start.time},           {"version", start.version},
          {"commit", start.commit},       {"begin_step", start.begin_step},
          {"end_step", start.end_step},   {"saved_step", start.saved_step},
          {"tokens", start.tokens},       {"labels", start.labels},
          {"data", start.data},           {"seconds", start.seconds},
          {"launch_id", start.launch_id}, {"exit_reason", start.exit_reason}};
}

RunStart read_start(const JsonReader& json) {
  return {.host = json["host"].text(),
          .pid = json["pid"].integer(),
          .time = json["time"].text(),
          .version = json["version"].text(),
          .commit = json["commit"].text(),
          .begin_step = json["begin_step"].count(),
          .end_step = json["end_step"].count(),
          // Older files do not say: what was finished may have been saved.
          .saved_step = json.integer_or("saved_step", json["end_step"].count(), 0),
          .launch_id = json.text_or("launch_id", ""),
          .tokens = json["tokens"].count(),
          .labels = json.integer_or("labels", 0, 0),
          .data = json.has("data") ? json["data"].json() : Json(),
          .seconds = json["seconds"].number(),
          .exit_reason = json["exit_reason"].text()};
}

}  // namespace

std::vector<RunStart> read_run_history(const fs::path& run_folder) {
  const fs::path path = run_folder / "run.json";
  std::vector<RunStart> history;
  if (!fs::exists(path)) return history;
  const Json json = read_json_file(path);
  const JsonReader reader(json, path.string());
  const int64_t version = reader["format_version"].integer();
  if (version != kFormatVersion) {
    throw Error(format("{}: format_version {}, this program reads {}; name another run folder", path.string(),
                       version, kFormatVersion));
  }
  const JsonReader starts = reader["starts"];
  for (size_t i = 0; i < starts.size(); ++i) history.push_back(read_start(starts.at(i)));
  return history;
}

RunFolder::RunFolder(fs::path path, Logger& logger) : path_(std::move(path)), logger_(logger) {
  if (fs::exists(path_) && !fs::is_directory(path_)) {
    throw UsageError(format("the run folder {} is a file; name another folder", path_.string()));
  }
  std::error_code failure;
  fs::create_directories(path_, failure);
  if (failure) {
    throw UsageError(format("cannot create the run folder {}: {}; name a folder that can be written",
                            path_.string(), failure.message()));
  }
  lock();
  try {
    load_history();
  } catch (...) {
    close(lock_descriptor_);
    throw;
  }
}

RunFolder::~RunFolder() {
  close(lock_descriptor_);
}

void RunFolder::load_history() {
  try {
    history_ = read_run_history(path_);
    if (!history_.empty()) earlier_seconds_ = history_.back().seconds;
  } catch (const FormatError& damage) {
    const fs::path damaged = set_aside(history_file(), ".damaged");
    logger_.warning("the history of this run begins anew: {} is damaged and was renamed to {} ({})",
                    history_file().string(), damaged.string(), damage.what());
  }
}

void RunFolder::lock() {
  const fs::path file = path_ / "run.lock";
  const int descriptor = open_to_write(file, O_RDWR);
  if (descriptor < 0) {
    throw UsageError(
        format("the run folder {} cannot be written: {}; name another folder or correct its permissions",
               path_.string(), std::strerror(errno)));
  }
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason == EWOULDBLOCK) {
      close(descriptor);
      const std::string holder = read_file(file, 4096);
      throw UsageError(
          format("the run folder {} is in use by {}; stop that process or name another run folder",
                 path_.string(), holder.empty() ? "another process" : holder));
    }
    // Some network file systems have no locks.
    logger_.warning("cannot lock {}: {}; make sure that no second process uses this run folder",
                    file.string(), std::strerror(reason));
  }
  const std::string holder = format("process {} on {}", static_cast<int64_t>(getpid()), host_name());
  if (ftruncate(descriptor, 0) != 0 || write(descriptor, holder.data(), holder.size()) < 0) {
    const std::string reason = std::strerror(errno);
    close(descriptor);
    throw UsageError(
        format("the run folder {} cannot be written: {}; free some disk space or name another folder",
               path_.string(), reason));
  }
  lock_descriptor_ = descriptor;
}

fs::path RunFolder::checkpoint_link(const std::string& name) const {
  const fs::path link = path_ / name;
  struct stat status{};
  if (lstat(link.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return "";
  const auto refuse = [&](std::string_view reason) {
    throw UsageError(format("{} is a symbolic link {}: put a folder in its place, or a link of your own",
                            link.string(), reason));
  };
  if (status.st_uid != geteuid() && status.st_uid != 0) refuse("that another user made");
  std::error_code failure;
  fs::path target = fs::canonical(link, failure);
  if (failure) refuse(format("to nowhere ({})", failure.message()));
  const fs::path around = target.parent_path();
  const bool in_run = fs::exists(around / "run.lock", failure) || fs::exists(around / "run.json", failure);
  if (in_run && !fs::equivalent(around, path_, failure))
    refuse(format("into another run, {}", around.string()));
  return target;
}

void RunFolder::write_config(std::string_view toml) const {
  write_file_atomic(config_file(), toml);
}

void RunFolder::begin(RunStart start) {
  for (RunStart& earlier : history_) {
    if (earlier.exit_reason == kRunning) earlier.exit_reason = "died";
  }
  start.host = host_name();
  start.pid = getpid();
  start.time = utc_time_now();
  start.end_step = start.begin_step;
  start.seconds = earlier_seconds_;
  start.exit_reason = kRunning;
  history_.push_back(std::move(start));
  has_begun_ = true;
  save();
}

void RunFolder::progress(int64_t end_step, int64_t tokens, int64_t labels, double seconds) {
  RunStart& start = history_.back();
  start.end_step = end_step;
  start.tokens = tokens;
  start.labels = labels;
  start.seconds = earlier_seconds_ + seconds;
  save_or_warn();
}

void RunFolder::saved(int64_t step) {
  if (!has_begun_) return;
  history_.back().saved_step = step;
  save_or_warn();
}

void RunFolder::finish(std::string_view exit_reason) {
  history_.back().exit_reason = exit_reason;
  save_or_warn();
}

void RunFolder::save() const {
  Json starts = Json::array();
  for (const RunStart& start : history_) starts.push_back(to_json(start));
  const Json json = {{"format_version", kFormatVersion}, {"starts", std::move(starts)}};
  write_file_atomic(history_file(), json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n');
}

void RunFolder::save_or_warn() {
  try {
    save();
  } catch (const Error& failure) {
    logger_.warning("the history of this run is not up to date: {}", failure.what());
  }
}

}  // namespace stepforge
