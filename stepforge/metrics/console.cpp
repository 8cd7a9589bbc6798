#include "stepforge/metrics/console.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>


#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr std::string_view red = "\x1b[31m";
constexpr std::string_view green = "\x1b[32m";
constexpr std::string_view yellow = "\x1b[33m";
constexpr std::string_view blue = "\x1b[34m";
constexpr std::string_view magenta = "\x1b[35m";
constexpr std::string_view cyan = "\x1b[36m";
constexpr std::string_view bright_blue = "\x1b[94m";
constexpr std::string_view bright_black = "\x1b[90m";
constexpr std::string_view reset = "\x1b[0m";

/// 1234.5 in "1,234.50"; what is not finite stays a word.
std::string grouped(double value, int decimals) {
  if (!std::isfinite(value) || std::abs(value) >= 1e15) return format("{}", value);
  const std::string text = format("{:.{}f}", std::abs(value), decimals);
  const size_t point = text.find('.');
  const std::string whole = with_thousands(std::stoll(text.substr(0, point)));
  return (value < 0 ? "-" : "") + whole + (point == std::string::npos ? "" : text.substr(point));
}

std::string fixed4(double value) {
  return format("{:.4f}", value);
}
std::string exponent2(double value) {
  return format("{:.2e}", value);
}
std::string gibibytes(double value) {
  return format("{:.2f}GiB", value);
}
std::string whole(double value) {
  return grouped(value, 0);
}
std::string grouped2(double value) {
  return grouped(value, 2);
}
std::string percent2(double value) {
  return format("{:.2f}%", value);
}
std::string percent1(double value) {
  return format("{:.1f}%", value);
}

struct Field {
  std::string_view metric;
  std::string_view label;
  std::string_view colour;
  std::string (*text)(double);
};

constexpr Field train_fields[] = {
    {metric::loss, "loss", green, fixed4},      {metric::grad_norm, "grad_norm", yellow, fixed4},
    {metric::lr, "lr", bright_blue, exponent2}, {metric::memory_active, "memory", cyan, gibibytes},
    {metric::tps, "tps", blue, whole},          {metric::tflops, "tflops", cyan, grouped2},
    {metric::mfu, "mfu", magenta, percent2},    {metric::data_loading_share, "data", bright_black, percent1},
};

constexpr Field validation_fields[] = {
    {metric::validation_loss, "loss", green, fixed4},
    {metric::validation_perplexity, "ppl", yellow, grouped2},
    {metric::validation_bits_per_byte, "bpb", magenta, fixed4},
    {metric::validation_tps, "tps", blue, whole},
};

class LineBuilder {
 public:
  explicit LineBuilder(bool colour) : colour_(colour) {}

  void add(std::string_view label, const std::string& value, std::string_view colour) {
    if (!line_.empty()) line_ += "  ";
    if (colour_) line_ += colour;
    line_ += label;
    line_ += ": ";
    line_ += value;
    if (colour_) line_ += reset;
  }

  template <size_t count>
  void add_fields(const MetricsRecord& record, const Field (&fields)[count]) {
    for (const Field& field : fields) {
      if (const auto value = record.find(field.metric)) add(field.label, field.text(*value), field.colour);
    }
  }

  std::string take() { return std::move(line_); }

 private:
  bool colour_;
  std::string line_;
};

}  // namespace

std::string console_line(const MetricsRecord& record, bool colour) {
  LineBuilder line(colour);
  if (record.kind == "train") {
    line.add("step", format("{}", record.step), red);
    line.add_fields(record, train_fields);
  } else if (record.kind == "validation") {
    line.add("validate step", format("{}", record.step), red);
    line.add_fields(record, validation_fields);
  } else {
    line.add(record.kind + " step", format("{}", record.step), red);
    for (const auto& [name, value] : record.values) line.add(name, format("{}", value), cyan);
  }
  return line.take();
}

bool locale_is_utf8() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nobody sets variables
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    return locale.find("UTF-8") != std::string_view::npos || locale.find("utf8") != std::string_view::npos;
  }
  return false;
}

namespace {

constexpr int longest_bar = 30;
constexpr int shortest_bar = 5;

std::string bar_text(double share, int columns, bool unicode) {
  const int done = static_cast<int>(share * columns);
  std::string bar;
  for (int i = 0; i < columns; ++i) {
    if (unicode) {
      bar += i < done ? "━" : "─";
    } else {
      bar += i < done ? '#' : '-';
    }
  }
  return bar;
}

/// The parts after the bar, most important first; all of them ASCII, so that bytes are columns.
std::vector<std::string> status_parts(const Status& status) {
  std::vector<std::string> parts;
  if (status.total_steps > 0) {
    parts.push_back(with_thousands(status.step) + "/" + with_thousands(status.total_steps));
  } else {
    parts.push_back("step " + with_thousands(status.step));
  }
  if (!std::isnan(status.smoothed_loss)) parts.push_back(format("loss {:.4f}", status.smoothed_loss));
  if (status.tokens_per_second > 0) parts.push_back(whole(status.tokens_per_second) + " tok/s");
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
  const int columns = std::min(longest_bar, width - static_cast<int>(percent.size() + text.size()) - 3);
  if (columns < shortest_bar) return text;
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
  // The last column stays free: some terminals wrap when it is written.
  put("\r" + status_text(*status_, width() - 1, unicode_) + "\x1b[K");
  visible_ = true;
}

void StatusLine::put(std::string_view text) const {
  // Nothing can be done about a terminal that has gone away, and the run goes on without it.
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor_, text.data(), text.size());
    if (done <= 0) return;
    text.remove_prefix(static_cast<size_t>(done));
  }
}

int StatusLine::width() const {
  return terminal_columns(descriptor_);
}

}  // namespace stepforge
