// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/console.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "stepforge/base/files.h"
#include "tests/support/temp_folder.h"

namespace stepforge::testing {
namespace {

MetricsRecord full_record() {
  MetricsRecord record{"train", 100, 0, {}};
  record.add(metric::loss, 3.12344);
  record.add(metric::grad_norm, 0.51228);
  record.add(metric::lr, 8e-4);
  record.add(metric::memory_active, 0.41);
  record.add(metric::tps, 6120.4);
  record.add(metric::tflops, 0.28);
  record.add(metric::mfu, 12.34);
  record.add(metric::data_loading_share, 0.1);
  return record;
}

TEST(ConsoleLine, HasTorchtitansFieldsInOrder) {
  EXPECT_EQ(
      console_line(full_record(), 200, false),
      "step: 100  loss: 3.1234  grad_norm: 0.5123  lr: 8.00e-04  memory: 0.41GiB  tps: 6,120  tflops: 0.28  "
      "mfu: 12.34%  data: 0.1%");
}

TEST(ConsoleLine, LeavesOutTheLeastImportantFieldsUntilItFits) {
  const MetricsRecord record = full_record();
  EXPECT_EQ(
      console_line(record, 103, false),
      "step: 100  loss: 3.1234  grad_norm: 0.5123  lr: 8.00e-04  memory: 0.41GiB  tps: 6,120  mfu: 12.34%");
  EXPECT_EQ(console_line(record, 63, false), "step: 100  loss: 3.1234  grad_norm: 0.5123  tps: 6,120");
  EXPECT_EQ(console_line(record, 1, false), "step: 100");
  for (int columns = 9; columns < 130; ++columns) {
    EXPECT_LE(static_cast<int>(console_line(record, columns, false).size()), columns);
  }
}

TEST(ConsoleLine, ARunOnPairsShowsItsMargin) {
  MetricsRecord record{"train", 100, 0.0, {}};
  record.add(metric::loss, 0.5);
  record.add(metric::reward_margins, 0.25);
  record.add(metric::reward_accuracies, 0.75);
  EXPECT_EQ(console_line(record, 200, false), "step: 100  loss: 0.5000  margin: 0.2500  accuracy: 0.750");
}

TEST(ConsoleLine, NamesTheTokensOfTheJobAndOfARankIfThereAreSeveral) {
  MetricsRecord record{"train", 1, 0, {}};
  record.add(metric::tps, 300);
  record.add(metric::job_tps, 600);
  EXPECT_EQ(console_line(record, 200, false), "step: 1  tps: 600  tps/rank: 300");
  record.values[0].second = 600;
  EXPECT_EQ(console_line(record, 200, false), "step: 1  tps: 600");
}

TEST(ConsoleLine, LeavesOutUnknownValues) {
  MetricsRecord record{"train", 1, 0, {}};
  record.add(metric::lr, 1e-5);
  record.add(metric::loss, NAN);
  EXPECT_EQ(console_line(record, 200, false), "step: 1  loss: nan  lr: 1.00e-05");
}

TEST(ConsoleLine, GroupsLargeNumbers) {
  MetricsRecord record{"train", 12345, 0, {}};
  record.add(metric::tps, 1234567.8);
  record.add(metric::tflops, 1234.5);
  EXPECT_EQ(console_line(record, 200, false), "step: 12345  tps: 1,234,568  tflops: 1,234.50");
  record.values[0].second = INFINITY;
  record.values[1].second = -1e300;
  EXPECT_EQ(console_line(record, 200, false), "step: 12345  tps: inf  tflops: -1e+300");
}

TEST(ConsoleLine, ColoursEachFieldAndEndsTheColour) {
  MetricsRecord record{"train", 7, 0, {}};
  record.add(metric::loss, 2);
  EXPECT_EQ(console_line(record, 200, true), "\x1b[31mstep: 7\x1b[0m  \x1b[32mloss: 2.0000\x1b[0m");
}

TEST(ConsoleLine, ShowsValidationsAndEvents) {
  MetricsRecord validation{"validation", 50, 0, {}};
  validation.add(metric::validation_loss, 2.5);
  validation.add(metric::validation_perplexity, 1012.182);
  validation.add(metric::validation_bits_per_byte, 1.25);
  validation.add(metric::validation_tps, 20000);
  EXPECT_EQ(console_line(validation, 200, false),
            "validate step: 50  loss: 2.5000  ppl: 1,012.18  bpb: 1.2500  tps: 20,000");
  const MetricsRecord event{"event", 50, 0, {{"checkpoint/seconds", 0.5}}};
  EXPECT_EQ(console_line(event, 200, false), "event step: 50  checkpoint/seconds: 0.5");
}

Status quarter() {
  return {.step = 100,
          .total_steps = 400,
          .smoothed_loss = 3.12344,
          .tokens_per_second = 6120,
          .seconds_per_step = 2.41};
}

TEST(StatusText, ShowsBarStepLossSpeedAndTimeLeft) {
  EXPECT_EQ(status_text(quarter(), 100, false),
            " 25% #######-----------------------  100/400  loss 3.1234  6,120 tok/s  ETA 12m 03s");
}

TEST(StatusText, DrawsTheBarInUnicodeWhereTheLocaleAllows) {
  const Status status{.step = 1, .total_steps = 2};
  EXPECT_EQ(status_text(status, 20, true), " 50% ━━━━━─────  1/2");
}

TEST(StatusText, FitsAnyWidth) {
  for (int width = 0; width <= 120; ++width) {
    EXPECT_LE(static_cast<int>(status_text(quarter(), width, false).size()), width);
  }
  EXPECT_EQ(status_text(quarter(), 60, false),
            " 25% #------  100/400  loss 3.1234  6,120 tok/s  ETA 12m 03s");
  EXPECT_EQ(status_text(quarter(), 50, false), "100/400  loss 3.1234  6,120 tok/s  ETA 12m 03s");
  EXPECT_EQ(status_text(quarter(), 25, false), "100/400  loss 3.1234");
  EXPECT_EQ(status_text(quarter(), 6, false), "");
}

TEST(StatusText, LeavesOutUnknownValues) {
  EXPECT_EQ(status_text({.step = 1234}, 80, false), "step 1,234");
  const Status done{.step = 4, .total_steps = 4, .seconds_per_step = 1};
  EXPECT_EQ(status_text(done, 30, false), "100% " + std::string(20, '#') + "  4/4");
}

/// A pseudo-terminal whose output the test reads.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : screen_(posix_openpt(O_RDWR | O_NOCTTY)) {
    std::array<char, 128> name{};
    if (screen_ < 0 || grantpt(screen_) != 0 || unlockpt(screen_) != 0 ||
        ptsname_r(screen_, name.data(), name.size()) != 0) {
      throw std::runtime_error("no pseudo terminal");
    }
    program_ = open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    winsize size{};
    size.ws_col = columns;
    ioctl(program_, TIOCSWINSZ, &size);
  }
  ~Terminal() {
    close(program_);
    close(screen_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int descriptor() const { return program_; }
  /// What was written since the last call. A terminal may deliver bytes late, so an end mark is sent after
  /// them.
  std::string take() const {
    constexpr std::string_view mark = "<end>";
    EXPECT_EQ(write(program_, mark.data(), mark.size()), static_cast<ssize_t>(mark.size()));
    std::string text;
    while (!text.ends_with(mark)) {
      std::array<char, 4096> buffer{};
      const ssize_t got = read(screen_, buffer.data(), buffer.size());
      if (got <= 0) throw std::runtime_error("the pseudo terminal was closed");
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    return text.substr(0, text.size() - mark.size());
  }

 private:
  int screen_;
  int program_ = -1;
};

const StatusLine::Clock::time_point start{};

Status without_bar(int64_t step) {
  return {.step = step};
}

TEST(StatusLine, RedrawsAtMostTenTimesASecond) {
  const Terminal terminal(60);
  Logger logger(LogLevel::error);
  StatusLine line(logger, terminal.descriptor());
  line.update(without_bar(1), start);
  EXPECT_EQ(terminal.take(), "\rstep 1\x1b[K");
  line.update(without_bar(2), start + std::chrono::milliseconds(99));
  EXPECT_EQ(terminal.take(), "");
  line.update(without_bar(3), start + std::chrono::milliseconds(100));
  EXPECT_EQ(terminal.take(), "\rstep 3\x1b[K");
}

TEST(StatusLine, UsesTheWidthOfTheTerminal) {
  const Terminal terminal(25);
  Logger logger(LogLevel::error);
  StatusLine line(logger, terminal.descriptor());
  line.update(quarter(), start);
  EXPECT_EQ(terminal.take(), "\r100/400  loss 3.1234\x1b[K");
}

TEST(LogTextColumns, FitLinesOf120Or80Columns) {
  EXPECT_EQ(log_text_columns(Terminal(200).descriptor()), 120 - 17);
  EXPECT_EQ(log_text_columns(Terminal(119).descriptor()), 80 - 17);
  EXPECT_EQ(log_text_columns(-1), 120 - 17) << "not a terminal";
}

TEST(LogTextColumns, LeaveRoomForTheTimeAndLevelOfALogLine) {
  ::testing::internal::CaptureStderr();
  Logger(LogLevel::info).info("x");
  EXPECT_EQ(::testing::internal::GetCapturedStderr().size(), std::string("x\n").size() + 17);
}

TEST(StatusLine, IsClearedForLogLinesAndRedrawnWithTheNewestStatus) {
  const Terminal terminal(60);
  ::testing::internal::CaptureStderr();
  Logger logger(LogLevel::warning);
  StatusLine line(logger, terminal.descriptor());
  line.update(without_bar(1), start);
  line.update(without_bar(2), start);
  terminal.take();
  logger.warning("a line");
  EXPECT_EQ(terminal.take(), "\r\x1b[K\rstep 2\x1b[K");
  line.clear();
  EXPECT_EQ(terminal.take(), "\r\x1b[K");
  logger.warning("another");
  EXPECT_EQ(terminal.take(), "");
  ::testing::internal::GetCapturedStderr();
}

TEST(StatusLine, ClearsItselfAndRemovesTheGuardAtTheEnd) {
  const Terminal terminal(60);
  ::testing::internal::CaptureStderr();
  Logger logger(LogLevel::warning);
  {
    StatusLine line(logger, terminal.descriptor());
    line.update(without_bar(1), start);
    terminal.take();
  }
  EXPECT_EQ(terminal.take(), "\r\x1b[K");
  logger.warning("after the line is gone");
  EXPECT_EQ(terminal.take(), "");
  ::testing::internal::GetCapturedStderr();
}

TEST(StatusLine, WritesNothingWithoutATerminal) {
  const TempFolder folder;
  const int descriptor = open((folder / "out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  {
    Logger logger(LogLevel::error);
    StatusLine line(logger, descriptor);
    line.update(quarter(), start);
  }
  EXPECT_EQ(read_file(folder / "out"), "");
  close(descriptor);
}

}  // namespace
}  // namespace stepforge::testing
