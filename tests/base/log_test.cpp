// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/log.h"

#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(Logger, WritesLinesAtOrAboveItsThreshold) {
  ::testing::internal::CaptureStderr();
  {
    Logger logger(LogLevel::info);
    logger.debug("hidden");
    logger.info("step {} done", 3);
    logger.error("broken");
    logger.flush();
  }
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_CONTAINS(lines, "step 3 done\n");
  EXPECT_CONTAINS(lines, "broken\n");
  EXPECT_EQ(lines.find("hidden"), std::string::npos);
  EXPECT_EQ(lines.find('\033'), std::string::npos) << "no colour unless asked for";
}

TEST(Logger, ColoursWarningsWhenAsked) {
  ::testing::internal::CaptureStderr();
  {
    Logger logger(LogLevel::info, /*colour=*/true);
    logger.warning("careful");
    logger.flush();
  }
  EXPECT_CONTAINS(::testing::internal::GetCapturedStderr(), "\033[");
}

TEST(Logger, AppendsToTheFile) {
  const TempFolder folder;
  ::testing::internal::CaptureStderr();
  for (const char* text : {"first start", "second start"}) {
    Logger logger;
    logger.add_file(folder / "log.txt");
    logger.info("{}", text);
    logger.flush();
  }
  ::testing::internal::GetCapturedStderr();
  const std::string lines = read_file(folder / "log.txt");
  EXPECT_CONTAINS(lines, "first start");
  EXPECT_CONTAINS(lines, "second start");
}

TEST(Logger, EveryLineIsInTheFileAtOnceAndWithoutColours) {
  const TempFolder folder;
  ::testing::internal::CaptureStderr();
  Logger logger(LogLevel::info, /*colour=*/true);
  logger.add_file(folder / "log.txt");
  logger.warning("{}", "careful");
  const std::string lines = read_file(folder / "log.txt");  // before the logger is flushed or destroyed
  EXPECT_CONTAINS(lines, "careful\n");
  EXPECT_EQ(lines.find('\033'), std::string::npos);
  EXPECT_CONTAINS(::testing::internal::GetCapturedStderr(), "\033[");
}

TEST(Logger, TextFromAFileCannotSteerTheTerminal) {
  const TempFolder folder;
  ::testing::internal::CaptureStderr();
  {
    Logger logger;
    logger.add_file(folder / "log.txt");
    logger.warning("the name is {}",
                   "\033[2J\xC2\x9B"
                   "1m\r");
    logger.info("one\n  two");
    logger.flush();
  }
  const std::string shown = ::testing::internal::GetCapturedStderr();
  for (const std::string& lines : {shown, read_file(folder / "log.txt")}) {
    EXPECT_CONTAINS(lines,
                    "the name is \\x1B[2J\\x9B"
                    "1m\\x0D\n",
                    "one\n  two\n");
    EXPECT_EQ(lines.find('\033'), std::string::npos);
  }
}

TEST(Logger, NeverWritesThroughALink) {
  const TempFolder folder;
  write_text(folder / "precious", "data");
  std::filesystem::create_symlink(folder / "precious", folder / "log.txt");
  Logger logger(LogLevel::error);
  EXPECT_CONTAINS(message_of<UsageError>([&] { logger.add_file(folder / "log.txt"); }),
                  "log.txt is a symbolic link", "remove the link");
  logger.info("a line");
  EXPECT_EQ(read_file(folder / "precious"), "data");
}

TEST(Logger, AnUnwritableFileIsAnErrorThatNamesIt) {
  const TempFolder folder;
  Logger logger;
  const auto add = [&] { logger.add_file(folder.path()); };
  EXPECT_CONTAINS(message_of<Error>(add), folder.path().string());
}

TEST(Logger, GuardsEveryLineThatReachesTheTerminal) {
  ::testing::internal::CaptureStderr();
  std::vector<std::string> calls;
  {
    Logger logger(LogLevel::warning);
    logger.set_terminal_guard([&] { calls.emplace_back("before"); }, [&] { calls.emplace_back("after"); });
    logger.info("not shown");
    logger.warning("shown");
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(calls, (std::vector<std::string>{"before", "after"}));
}

TEST(Logger, TextIsNotAFormatString) {
  ::testing::internal::CaptureStderr();
  {
    Logger logger;
    logger.write(LogLevel::info, "{} %s {broken");
    logger.flush();
  }
  EXPECT_CONTAINS(::testing::internal::GetCapturedStderr(), "{} %s {broken");
}

}  // namespace
}  // namespace stepforge::testing
