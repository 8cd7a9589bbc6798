// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/console.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/base/log.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

constexpr std::string_view kRed = "\x1b[31m";
constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kYellow = "\x1b[33m";
constexpr std::string_view kBlue = "\x1b[34m";
constexpr std::string_view kMagenta = "\x1b[35m";
constexpr std::string_view kCyan = "\x1b[36m";
constexpr std::string_view kBrightBlue = "\x1b[94m";
constexpr std::string_view kBrightBlack = "\x1b[90m";
constexpr std::string_view kReset = "\x1b[0m";

/// 1234.5 as "1,234.50"; "nan" and "inf" where the value is not finite.
std::string grouped(double value, int decimals) {
  if (!std::isfinite(value) || std::abs(value) >= 1e15) return format("{}", value);
  const std::string text = format("{:.{}f}", std::abs(value), decimals);
  const size_t point = text.find('.');
  const std::string whole = with_thousands(std::stoll(text.substr(0, point)));
  return (value < 0 ? "-" : "") + whole + (point == std::string::npos ? "" : text.substr(point));
}

struct Field {
  std::string_view metric;
  std::string_view label;
  std::string_view colour;
  std::string_view pattern;  ///< of fmt; "" for grouped() with `decimals`
  int importance;            ///< the least important field is left out first
  int decimals = 0;

  std::string text(double value) const {
    return format("{}: {}", label, pattern.empty() ? grouped(value, decimals) : format(pattern, value));
  }
};

constexpr Field kTrainFields[] = {
    {metric::loss, "loss", kGreen, "{:.4f}", 8},
    {metric::reward_margins, "margin", kMagenta, "{:.4f}", 7},
    {metric::reward_accuracies, "accuracy", kMagenta, "{:.3f}", 7},
    {metric::grad_norm, "grad_norm", kYellow, "{:.4f}", 6},
    {metric::lr, "lr", kBrightBlue, "{:.2e}", 5},
    {metric::memory_active, "memory", kCyan, "{:.2f}GiB", 4},
    {metric::job_tps, "tps", kBlue, "", 7, 0},
    {metric::tps, "tps/rank", kBlue, "", 3, 0},
    {metric::tflops, "tflops", kCyan, "", 2, 2},
    {metric::mfu, "mfu", kMagenta, "{:.2f}%", 3},
    {metric::data_loading_share, "data", kBrightBlack, "{:.1f}%", 1},
};

constexpr Field kValidationFields[] = {
    {metric::validation_loss, "loss", kGreen, "{:.4f}", 4},
    {metric::validation_margins, "margin", kMagenta, "{:.4f}", 3},
    {metric::validation_accuracies, "accuracy", kMagenta, "{:.3f}", 3},
    {metric::validation_perplexity, "ppl", kYellow, "", 3, 2},
    {metric::validation_bits_per_byte, "bpb", kMagenta, "{:.4f}", 2},
    {metric::validation_tps, "tps", kBlue, "", 1, 0},
};

struct Part {
  std::string text;
  std::string_view colour;
  int importance;
};

std::vector<Part> parts_of(const MetricsRecord& record) {
  const bool event = record.kind != "train" && record.kind != "validation";
  const std::string prefix = record.kind == "train" ? "" : event ? record.kind + " " : "validate ";
  std::vector<Part> parts = {{format("{}step: {}", prefix, record.step), kRed, 100}};
  const auto add = [&](const Field& field) {
    const auto value = record.find(field.metric);
    if (!value) return;
    Field shown = field;
    if (field.metric == metric::tps) {
      const auto of_job = record.find(metric::job_tps);
      if (value == of_job) return;  // a single rank
      if (!of_job) shown = {metric::tps, "tps", field.colour, "", 7};
    }
    parts.push_back({shown.text(*value), shown.colour, shown.importance});
  };
  if (event) {
    for (const auto& [name, value] : record.values)
      parts.push_back({format("{}: {}", printable_line(name), value), kCyan, 1});
  } else if (record.kind == "train") {
    std::for_each(std::begin(kTrainFields), std::end(kTrainFields), add);
  } else {
    std::for_each(std::begin(kValidationFields), std::end(kValidationFields), add);
  }
  return parts;
}

}  // namespace

std::string console_line(const MetricsRecord& record, int columns, bool colour) {
  constexpr size_t kGap = 2;
  std::vector<Part> parts = parts_of(record);
  const auto width = [&] {
    size_t sum = kGap * (parts.size() - 1);
    for (const Part& part : parts) sum += part.text.size();
    return static_cast<int>(sum);
  };
  while (width() > columns && parts.size() > 1) {
    parts.erase(std::min_element(parts.begin(), parts.end(), [](const Part& left, const Part& right) {
      return left.importance < right.importance;
    }));
  }
  std::string line;
  for (const Part& part : parts) {
    if (!line.empty()) line.append(kGap, ' ');
    line += colour ? format("{}{}{}", part.colour, part.text, kReset) : part.text;
  }
  return line;
}

int log_text_columns(int descriptor) {
  constexpr int kTimeAndLevel = 17;  // "12:00:01 INFO    "
  const int columns = terminal_columns(descriptor);
  return (columns > 0 && columns < 120 ? 80 : 120) - kTimeAndLevel;
}

bool locale_is_utf8() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): never set
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    return locale.find("UTF-8") != std::string_view::npos || locale.find("utf8") != std::string_view::npos;
  }
  return false;
}

namespace {

constexpr int kLongestBar = 30;
constexpr int kShortestBar = 5;

std::string bar_text(double share, int columns, bool unicode) {
  const int done = static_cast<int>(share * columns);
  std::string bar;
  for (int i = 0; i < columns; ++i) bar += i < done ? (unicode ? "━" : "#") : (unicode ? "─" : "-");
  return bar;
}

/// The parts after the bar, most important first. All are ASCII, so one byte is one column.
std::vector<std::string> status_parts(const Status& status) {
  const std::string step = with_thousands(status.step);
  std::vector<std::string> parts = {status.total_steps > 0 ? step + "/" + with_thousands(status.total_steps)
                                                           : "step " + step};
  if (!std::isnan(status.smoothed_loss)) parts.push_back(format("loss {:.4f}", status.smoothed_loss));
  if (status.tokens_per_second > 0) parts.push_back(grouped(status.tokens_per_second, 0) + " tok/s");
  const int64_t left = status.total_steps - status.step;
  if (left > 0 && status.seconds_per_step > 0) {
    parts.push_back("ETA " + human_duration(static_cast<double>(left) * status.seconds_per_step));
  }
  return parts;
}

}  // namespace

std::string status_text(const Status& status, int width, bool unicode) {
  std::vector<std::string> parts = status_parts(status);
  std::string text = join(parts, "  ");
  while (static_cast<int>(text.size()) > width && parts.size() > 1) {
    parts.pop_back();
    text = join(parts, "  ");
  }
  if (static_cast<int>(text.size()) > width) return "";
  if (status.total_steps <= 0) return text;
  const double share =
      std::clamp(static_cast<double>(status.step) / static_cast<double>(status.total_steps), 0.0, 1.0);
  const std::string percent = format("{:>3}%", static_cast<int>(share * 100));
  // Three gaps: after the percentage one column, after the bar two.
  const int columns = std::min(kLongestBar, width - static_cast<int>(percent.size() + text.size()) - 3);
  if (columns < kShortestBar) return text;
  return percent + " " + bar_text(share, columns, unicode) + "  " + text;
}

StatusLine::StatusLine(Logger& logger, int descriptor)
    : logger_(logger),
      descriptor_(descriptor),
      is_terminal_(terminal_columns(descriptor) > 0),
      unicode_(locale_is_utf8()) {
  if (!is_terminal_) return;
  const auto before = [this] {
    const std::lock_guard lock(mutex_);
    suspended_ = true;
    erase();
  };
  const auto after = [this] {
    const std::lock_guard lock(mutex_);
    suspended_ = false;
    if (status_) draw();
  };
  logger_.set_terminal_guard(before, after);
}

StatusLine::~StatusLine() {
  if (!is_terminal_) return;
  logger_.set_terminal_guard(nullptr, nullptr);
  clear();
}

void StatusLine::update(const Status& status, Clock::time_point now) {
  if (!is_terminal_) return;
  const std::lock_guard lock(mutex_);
  status_ = status;
  if (suspended_ || (last_draw_ && now - *last_draw_ < std::chrono::milliseconds(100))) return;
  last_draw_ = now;
  draw();
}

void StatusLine::clear() {
  const std::lock_guard lock(mutex_);
  status_.reset();
  last_draw_.reset();
  erase();
}

void StatusLine::erase() {
  if (visible_) put("\r\x1b[K");
  visible_ = false;
}

void StatusLine::draw() {
  // The last column stays empty, because some terminals wrap when it is written, and so do the two in which Ctrl-C is echoed:
  // after a wrap only the second row would be erased.
  constexpr int kEmptyColumns = 3;
  const int columns = terminal_columns(descriptor_);
  put("\r" + status_text(*status_, (columns > 0 ? columns : 80) - kEmptyColumns, unicode_) + "\x1b[K");
  visible_ = true;
}

void StatusLine::put(std::string_view text) const {
  // Errors are ignored: a closed terminal must not stop the run.
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor_, text.data(), text.size());
    if (done <= 0) return;
    text.remove_prefix(static_cast<size_t>(done));
  }
}

}  // namespace stepforge
