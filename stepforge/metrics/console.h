// SPDX-License-Identifier: Apache-2.0
// Terminal output of a run: a log line every few steps, and a status line below them.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <unistd.h>

#include "stepforge/base/log.h"
#include "stepforge/metrics/record.h"
#include "stepforge/metrics/sink.h"

namespace stepforge {

/// One line with the fields and order of torchtitan:
///
///     step: 100  loss: 3.1234  grad_norm: 0.5123  lr: 8.00e-04  memory: 0.41GiB  tps: 6,120  mfu: 12.34%
///     validate step: 100  loss: 3.2344  ppl: 25.39  bpb: 1.2500  tps: 20,000
///
/// An event lists its values by name. Values that the record does not have are left out; so are the least
/// important ones, until the line has at most `columns` characters. `colour`: use one ANSI colour per field.
std::string console_line(const MetricsRecord& record, int columns, bool colour);

/// How many characters of a log line are left for its text, after time and level: lines are 120 columns wide,
/// or 80 on a terminal narrower than 120.
int log_text_columns(int descriptor = STDERR_FILENO);

/// Writes console_line of each record to the log.
class ConsoleSink : public MetricsSink {
 public:
  /// `logger` must outlive the sink.
  ConsoleSink(Logger& logger, bool colour) : logger_(logger), colour_(colour) {}
  std::string name() const override { return "console"; }
  void write(const MetricsRecord& record) override {
    logger_.info("{}", console_line(record, log_text_columns(), colour_));
  }

 private:
  Logger& logger_;
  bool colour_;
};

/// Whether the locale of the environment (LC_ALL, LC_CTYPE, LANG) is a UTF-8 one.
bool locale_is_utf8();

/// The content of the status line. NaN and 0 mean unknown; such parts are left out.
struct Status {
  int64_t step = 0;
  int64_t total_steps = 0;
  double smoothed_loss = std::numeric_limits<double>::quiet_NaN();
  double tokens_per_second = 0;
  double seconds_per_step = 0;  ///< for the time left
};

/// " 25% ━━━━━─────  100/400  loss 3.1234  6,120 tok/s  ETA 12m 03s" in at most `width` columns: first the
/// bar shrinks, then parts are left out from the right. Without `unicode` the bar consists of '#' and '-'.
std::string status_text(const Status& status, int width, bool unicode);

/// One line at the bottom of the terminal, redrawn at most 10 times a second and after each log line. Writes
/// nothing if `descriptor` is not a terminal. Thread-safe.
class StatusLine {
 public:
  using Clock = std::chrono::steady_clock;

  /// Becomes the terminal guard of `logger`, which must outlive it.
  explicit StatusLine(Logger& logger, int descriptor = STDERR_FILENO);
  /// Clears the line and removes the guard.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void update(const Status& status, Clock::time_point now = Clock::now());
  /// Removes the line until the next update.
  void clear();

 private:
  void erase();
  void draw();
  void put(std::string_view text) const;

  Logger& logger_;
  int descriptor_;
  bool is_terminal_;
  bool unicode_;
  std::mutex mutex_;
  std::optional<Status> status_;
  std::optional<Clock::time_point> last_draw_;
  bool visible_ = false;
  bool suspended_ = false;  ///< a log line is being written
};

}  // namespace stepforge
