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
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr int format_version = 1;
constexpr std::string_view running = "running";

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
          {"tokens", start.tokens},       {"seconds", start.seconds},
          {"launch_id", start.launch_id}, {"exit_reason", start.exit_reason}};
}

RunStart start_from_json(const Json& json) {
  RunStart start;
  json.at("host").get_to(start.host);
  json.at("pid").get_to(start.pid);
  json.at("time").get_to(start.time);
  json.at("version").get_to(start.version);
  json.at("commit").get_to(start.commit);
  json.at("begin_step").get_to(start.begin_step);
  json.at("end_step").get_to(start.end_step);
  json.at("saved_step").get_to(start.saved_step);
  json.at("launch_id").get_to(start.launch_id);
  json.at("tokens").get_to(start.tokens);
  json.at("seconds").get_to(start.seconds);
  json.at("exit_reason").get_to(start.exit_reason);
  return start;
}

}  // namespace

std::vector<RunStart> read_run_history(const fs::path& run_folder) {
  const fs::path path = run_folder / "run.json";
  std::vector<RunStart> history;
  if (!fs::exists(path)) return history;
  const Json json = read_json_file(path);
  try {
    const int version = json.at("format_version").get<int>();
    if (version != format_version) {
      throw FormatError(
          format("{}: format_version {}, this program reads {}", path.string(), version, format_version));
    }
    for (const Json& start : json.at("starts")) history.push_back(start_from_json(start));
  } catch (const Json::exception& failure) {
    throw FormatError(format("{}: not a run history ({}); move the file away to begin a new one",
                             path.string(), failure.what()));
  }
  return history;
}

RunFolder::RunFolder(fs::path path, Logger& logger) : path_(std::move(path)), logger_(logger) {
  if (fs::exists(path_) && !fs::is_directory(path_)) {
    throw UsageError(format("the run folder {} is a file; name another folder", path_.string()));
  }
  std::error_code failure;
  fs::create_directories(path_, failure);
  if (failure) {
    throw UsageError(format("cannot create the run folder {}: {}; name a place that can be written",
                            path_.string(), failure.message()));
  }
  lock();
  try {
    history_ = read_run_history(path_);
  } catch (...) {
    close(lock_descriptor_);
    throw;
  }
  if (!history_.empty()) earlier_seconds_ = history_.back().seconds;
}

RunFolder::~RunFolder() {
  close(lock_descriptor_);
}

void RunFolder::lock() {
  const fs::path file = path_ / "run.lock";
  const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (descriptor < 0 && errno == ELOOP) {
    throw UsageError(
        format("{} is a symbolic link; locking the run would write into what it points to: remove the "
               "link",
               file.string()));
  }
  if (descriptor < 0) {
    throw UsageError(
        format("the run folder {} cannot be written: {}; name another place or correct its permissions",
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
    throw UsageError(format("the run folder {} cannot be written: {}; make room or name another place",
                            path_.string(), reason));
  }
  lock_descriptor_ = descriptor;
}

void RunFolder::write_config(std::string_view toml) const {
  write_file_atomic(config_file(), toml);
}

void RunFolder::begin(RunStart start) {
  for (RunStart& earlier : history_) {
    if (earlier.exit_reason == running) earlier.exit_reason = "died";
  }
  start.host = host_name();
  start.pid = getpid();
  start.time = utc_time_now();
  start.end_step = start.begin_step;
  start.seconds = earlier_seconds_;
  start.exit_reason = running;
  history_.push_back(std::move(start));
  save();
}

void RunFolder::progress(int64_t end_step, int64_t tokens, double seconds) {
  RunStart& start = history_.back();
  start.end_step = end_step;
  start.tokens = tokens;
  start.seconds = earlier_seconds_ + seconds;
  save_or_warn();
}

void RunFolder::saved(int64_t step) {
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
  const Json json = {{"format_version", format_version}, {"starts", std::move(starts)}};
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
