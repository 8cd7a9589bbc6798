// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/log.h"

#include <cstdlib>
#include <mutex>
#include <utility>

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "stepforge/base/file_writer.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {
spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

/// Each line reaches the system at once.
class LogFile : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogFile(const std::filesystem::path& path) : file_(FileWriter::append_to(path)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    file_.write(line.data(), line.size());
  }
  void flush_() override {}

  FileWriter file_;
};
}  // namespace

struct Logger::Implementation {
  explicit Implementation(spdlog::sink_ptr sink) : terminal("terminal", std::move(sink)) {}
  std::mutex mutex;
  spdlog::logger terminal;
  spdlog::logger files{"files"};
  std::function<void()> before;
  std::function<void()> after;
};

Logger::Logger(LogLevel threshold, bool colour) {
  spdlog::sink_ptr terminal;
  if (colour) {
    terminal = std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(spdlog::color_mode::always);
  } else {
    terminal = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  implementation_ = std::make_unique<Implementation>(std::move(terminal));
  implementation_->terminal.set_pattern("%H:%M:%S %^%-7l%$ %v");
  implementation_->terminal.set_level(to_spdlog(threshold));
  implementation_->terminal.flush_on(spdlog::level::warn);
  implementation_->files.set_level(to_spdlog(threshold));
  implementation_->files.flush_on(spdlog::level::trace);
}

Logger::~Logger() = default;

void Logger::add_file(const std::filesystem::path& path) {
  const std::lock_guard lock(implementation_->mutex);
  auto file = std::make_shared<LogFile>(path);
  file->set_pattern("%Y-%m-%d %H:%M:%S.%e %-7l %v");
  implementation_->files.sinks().push_back(std::move(file));
}

void Logger::quiet_terminal() {
  const std::lock_guard lock(implementation_->mutex);
  implementation_->terminal.sinks().front()->set_level(spdlog::level::err);
}

void Logger::set_terminal_guard(std::function<void()> before, std::function<void()> after) {
  const std::lock_guard lock(implementation_->mutex);
  implementation_->before = std::move(before);
  implementation_->after = std::move(after);
}

void Logger::write(LogLevel level, std::string_view text) {
  const std::lock_guard lock(implementation_->mutex);
  if (!implementation_->terminal.should_log(to_spdlog(level))) return;
  const std::string shown = printable(text);
  implementation_->files.log(to_spdlog(level), shown);
  if (implementation_->before) implementation_->before();
  implementation_->terminal.log(to_spdlog(level), shown);
  if (implementation_->after) implementation_->after();
}

void Logger::flush() {
  implementation_->terminal.flush();
}

int terminal_columns(int descriptor) {
  constexpr int kDefaultColumns = 80;
  if (isatty(descriptor) == 1) {
    winsize size{};
    return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultColumns;
  }
  const char* passed_on = descriptor == STDERR_FILENO ? std::getenv(kStderrColumnsVariable) : nullptr;
  if (passed_on == nullptr) return 0;
  const int columns = std::atoi(passed_on);
  return columns > 0 ? columns : kDefaultColumns;
}

bool stderr_is_terminal() {
  return terminal_columns(STDERR_FILENO) > 0;
}
bool stdout_is_terminal() {
  return terminal_columns(STDOUT_FILENO) > 0;
}

bool stdin_is_terminal() {
  return terminal_columns(STDIN_FILENO) > 0;
}

}  // namespace stepforge
