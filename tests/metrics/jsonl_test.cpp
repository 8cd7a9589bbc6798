// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/jsonl.h"

#include <cmath>
#include <csignal>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/random.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

MetricsRecord record_of(int64_t step, double loss = 2.5) {
  return {"train", step, 1000.5, {{std::string(metric::loss), loss}}};
}

std::string line_of(int64_t step) {
  return to_json_line(record_of(step)) + "\n";
}

TEST(JsonLine, IsFlatAndInOrder) {
  MetricsRecord record{"train", 3, 1700000000.25, {}};
  record.add(metric::loss, 3.0625);
  record.add(metric::lr, 8e-4);
  EXPECT_EQ(
      to_json_line(record),
      R"({"kind":"train","step":3,"wall_time":1700000000.25,"loss_metrics/global_avg_loss":3.0625,"lr":0.0008})");
}

TEST(JsonLine, ReadsBackExactly) {
  MetricsRecord record{"validation", int64_t{1} << 60, 1.0 / 3, {}};
  record.add("a \"quoted\" name", 0.1 + 0.2);
  record.add("tiny", std::numeric_limits<double>::denorm_min());
  const MetricsRecord back = parse_json_line(to_json_line(record), "test");
  EXPECT_EQ(back.kind, record.kind);
  EXPECT_EQ(back.step, record.step);
  EXPECT_EQ(back.wall_time, record.wall_time);
  EXPECT_EQ(back.values, record.values);
}

TEST(JsonLine, HoldsListsAfterTheValues) {
  MetricsRecord record{"train", 1, 0.0, {{"b", 2.0}}};
  record.lists = {{"a", {1.0, 0.5, NAN}}, {"none", {}}};
  const std::string line = to_json_line(record);
  EXPECT_EQ(line, R"({"kind":"train","step":1,"wall_time":0.0,"b":2.0,"a":[1.0,0.5,"NaN"],"none":[]})");
  const MetricsRecord back = parse_json_line(line, "test");
  EXPECT_EQ(back.values, record.values);
  ASSERT_EQ(back.lists.size(), 2U);
  EXPECT_EQ(back.lists[0].second[1], 0.5);
  EXPECT_TRUE(std::isnan(back.lists[0].second[2]));
  EXPECT_EQ(back.lists[1], record.lists[1]);
}

TEST(JsonLine, WritesNonFiniteValuesAsStrings) {
  const double infinity = std::numeric_limits<double>::infinity();
  const MetricsRecord record{"train", 1, 0, {{"a", NAN}, {"b", infinity}, {"c", -infinity}}};
  const std::string line = to_json_line(record);
  EXPECT_EQ(line, R"({"kind":"train","step":1,"wall_time":0.0,"a":"NaN","b":"Infinity","c":"-Infinity"})");
  const MetricsRecord back = parse_json_line(line, "test");
  EXPECT_TRUE(std::isnan(back.values[0].second));
  EXPECT_EQ(back.values[1].second, infinity);
  EXPECT_EQ(back.values[2].second, -infinity);
}

TEST(JsonLine, RefusesAValueNamedLikeAField) {
  const MetricsRecord record{"train", 1, 0, {{"step", 2}}};
  EXPECT_CONTAINS(message_of<Error>([&] { to_json_line(record); }), "\"step\"");
}

TEST(JsonLine, RefusesMalformedLinesNamingTheField) {
  const auto fault = [](std::string_view line) {
    return message_of<FormatError>([&] { parse_json_line(line, "m.jsonl:7"); });
  };
  EXPECT_EQ(fault("[]"), "m.jsonl:7: the document is [], not a JSON object");
  EXPECT_EQ(fault(R"({"kind":"train","wall_time":0})"), "m.jsonl:7: \"step\" is missing");
  EXPECT_EQ(fault(R"({"kind":1,"step":1,"wall_time":0})"), "m.jsonl:7: \"kind\" is 1, not a string");
  EXPECT_EQ(fault(R"({"kind":"train","step":1.5,"wall_time":0})"),
            "m.jsonl:7: \"step\" is 1.5, not an integer");
  EXPECT_EQ(fault(R"({"kind":"train","step":9223372036854775808,"wall_time":0})"),
            "m.jsonl:7: \"step\" is 9223372036854775808, not an integer");
  EXPECT_EQ(fault(R"({"kind":"train","step":1,"wall_time":0,"lr":"high"})"),
            "m.jsonl:7: \"lr\" is \"high\", not a number");
  EXPECT_CONTAINS(fault("{\"kind\":\"tr"), "m.jsonl:7: byte ");
}

TEST(ReadJsonl, SkipsAPartialLastLine) {
  const TempFolder folder;
  write_text(folder / "m.jsonl", line_of(1) + line_of(2) + R"({"kind":"train","st)");
  const std::vector<MetricsRecord> records = read_jsonl(folder / "m.jsonl");
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].step, 2);
}

TEST(ReadJsonl, NamesTheLineOfOtherDamage) {
  const TempFolder folder;
  write_text(folder / "m.jsonl", line_of(1) + "{\n" + line_of(3));
  EXPECT_CONTAINS(message_of<FormatError>([&] { read_jsonl(folder / "m.jsonl"); }), "m.jsonl:2: byte ");
}

TEST(RewindJsonl, KeepsExactlyTheLinesUpToTheStep) {
  const TempFolder folder;
  for (uint32_t trial = 0; trial < 60; ++trial) {
    // Lines in any order and with repeated steps, some damaged, sometimes with a partial last line.
    std::string text;
    std::string expected;
    JsonlRewind counts;
    const int64_t cut = philox(7, trial)[0] % 20;
    const uint32_t lines = philox(8, trial)[0] % 40;
    for (uint32_t i = 0; i < lines; ++i) {
      const auto random = philox(trial, i);
      if (random[1] % 10 == 0) {
        text += "{\"kind\":\"train\"\n";
        ++counts.damaged;
        continue;
      }
      const int64_t step = random[0] % 20;
      text += line_of(step);
      if (step <= cut) expected += line_of(step);
      ++(step <= cut ? counts.kept : counts.removed);
    }
    if (trial % 3 == 0) {
      text += line_of(0).substr(0, 1 + trial % 30);
      ++counts.damaged;
    }
    write_text(folder / "m.jsonl", text);
    const JsonlRewind result = rewind_jsonl(folder / "m.jsonl", cut);
    EXPECT_EQ(read_file(folder / "m.jsonl"), expected);
    EXPECT_EQ(result.kept, counts.kept);
    EXPECT_EQ(result.removed, counts.removed);
    EXPECT_EQ(result.damaged, counts.damaged);
  }
}

TEST(RewindJsonl, AddsAMissingLineFeedToACompleteLastLine) {
  const TempFolder folder;
  const std::string line = line_of(1);
  write_text(folder / "m.jsonl", line.substr(0, line.size() - 1));
  rewind_jsonl(folder / "m.jsonl", 5);
  EXPECT_EQ(read_file(folder / "m.jsonl"), line);
}

TEST(RewindJsonl, WithoutAFileDoesNothing) {
  const TempFolder folder;
  EXPECT_EQ(rewind_jsonl(folder / "m.jsonl", 5).kept, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "m.jsonl"));
}

TEST(JsonlSink, WritesEachRecordToTheFileAtOnce) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  JsonlSink sink(folder / "m.jsonl", logger);
  sink.write(record_of(1));
  EXPECT_EQ(read_file(folder / "m.jsonl"), line_of(1));
  sink.write(record_of(2));
  EXPECT_EQ(read_file(folder / "m.jsonl"), line_of(1) + line_of(2));
}

TEST(JsonlSink, RemovesAPartialLastLine) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  write_text(folder / "m.jsonl", line_of(1) + R"({"kind":)");
  JsonlSink sink(folder / "m.jsonl", logger);
  sink.write(record_of(2));
  EXPECT_EQ(read_file(folder / "m.jsonl"), line_of(1) + line_of(2));
}

TEST(JsonlSink, NeverWritesThroughALink) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  write_text(folder / "precious", line_of(1));
  std::filesystem::create_symlink(folder / "precious", folder / "m.jsonl");
  EXPECT_CONTAINS(message_of<UsageError>([&] { JsonlSink(folder / "m.jsonl", logger); }),
                  "m.jsonl is a symbolic link");
  EXPECT_EQ(read_file(folder / "precious"), line_of(1));
}

TEST(JsonlSink, NamesAFileThatCannotBeOpened) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  const std::string path = folder / "missing/m.jsonl";
  EXPECT_EQ(message_of<Error>([&] { JsonlSink(path, logger); }),
            "cannot write the metrics file " + path + ": No such file or directory");
}

/// While alive, no file of this process can grow beyond `bytes`, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(JsonlSink, AFullDiskLosesRecordsWithOneWarningAndLeavesNoPartialLine) {
  const TempFolder folder;
  // Long enough that the limit below leaves room for the captured warnings, which go to a file as well.
  std::string before;
  for (int64_t step = 1; step <= 200; ++step) before += line_of(step);
  write_text(folder / "m.jsonl", before);
  {
    Logger logger(LogLevel::warning);
    logger.add_file(folder / "log.txt");
    JsonlSink sink(folder / "m.jsonl", logger);
    ::testing::internal::CaptureStderr();
    {
      const FileSizeLimit limit(before.size() + 10);
      sink.write(record_of(201));
      EXPECT_EQ(read_file(folder / "m.jsonl"), before);
      sink.write(record_of(202));
    }
    const std::string warnings = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(count_of(warnings, "cannot write"), 1U) << warnings;
    EXPECT_CONTAINS(warnings, (folder / "m.jsonl").string()) << warnings;
    sink.write(record_of(203));
    EXPECT_EQ(sink.lost(), 2);
  }
  EXPECT_EQ(read_file(folder / "m.jsonl"), before + line_of(203));
  EXPECT_CONTAINS(read_file(folder / "log.txt"), "lacks 2 records");
}

}  // namespace
}  // namespace stepforge::testing
