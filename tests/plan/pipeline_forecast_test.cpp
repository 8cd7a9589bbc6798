// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/pipeline_forecast.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/load.h"
#include "stepforge/config/schema.h"
#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/generators.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

constexpr RankId kSecond{1, 4};

Config four_ranks(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"model.n_layers=6", "model.vocab_size=256", "training.seq_len=16",
                                     "training.local_batch_size=1", "training.global_batch_size=8",
                                     "parallelism.pipeline_parallel_degree=4"});
  return load_config({}, settings).config;
}

std::string text_of(const Config& config) {
  const Job job = plan_job(config, kSecond);
  const ProvedStep step = prove_train_step(job);
  return pipeline_text(job, step, simulate_pipeline(step.stages, {}));
}

std::string line_of(const std::string& text, const std::string& start) {
  const std::size_t at = text.find("\n  " + start);
  return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

TEST(PipelineText, SaysWhatEachRankHas) {
  const std::string text = text_of(four_ranks({"parallelism.pipeline_parallel_schedule=ZBVZeroBubble"}));
  EXPECT_CONTAINS(text, "Pipeline: ZBVZeroBubble, 8 stages on 4 ranks, 8 micro-batches\n");
  EXPECT_CONTAINS(text, "0, 7    embedding, head ");
  EXPECT_CONTAINS(text, "3, 4    layers.2, layers.3 ");
  EXPECT_CONTAINS(text, "bubble of all ranks: ");
  EXPECT_CONTAINS(text, "critical path: ");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
}

TEST(PipelineText, FlopsAreSharesOfAllStages) {
  const std::string text = text_of(four_ranks({}));
  double sum = 0;
  for (std::size_t at = text.find(" %"); at < text.find("bubble of all"); at = text.find(" %", at + 1)) {
    sum += std::stod(text.substr(text.rfind(' ', at - 1), at));
    at = text.find(" %", at + 1);  // the bubble of the rank
  }
  EXPECT_NEAR(sum, 100, 0.2) << text;
}

TEST(ScheduleComparison, TheConfigurationNamesTheBuiltInSchedules) {
  const Field& field = *config_schema().find("parallelism")->table->find("pipeline_parallel_schedule");
  std::vector<std::string_view> names;
  for (const ScheduleKind& kind : schedule_kinds()) names.push_back(kind.name);
  EXPECT_EQ(field.rules.choices, names);
}

TEST(ScheduleComparison, HasARowForEveryScheduleAndTheReasonIfItDoesNotFit) {
  const std::string text = compare_schedules(four_ranks({"model.n_layers=4"}), kSecond, {}).table;
  for (const ScheduleKind& kind : schedule_kinds())
    EXPECT_NE(line_of(text, std::string(kind.name) + " "), "") << kind.name;
  EXPECT_CONTAINS(line_of(text, "1F1B"), " s ");
  EXPECT_CONTAINS(line_of(text, "ZBVZeroBubble"), "does not fit: 8 pipeline stages for 6 blocks");
}

TEST(ScheduleComparison, HasTheScheduleOfTheFileToo) {
  const TempFolder folder;
  const std::string path = (folder / "own.csv").string();
  write_text(path, schedule_csv(make_schedule(ScheduleKind::gpipe, 4, 1, 8)));
  const std::string text =
      compare_schedules(four_ranks({"parallelism.pipeline_parallel_schedule_csv=" + path}), kSecond, {})
          .table;
  const auto numbers = [&](const std::string& name) {
    const std::string line = line_of(text, name);
    return line.substr(line.find(" 1 "));
  };
  EXPECT_EQ(numbers(path), numbers("GPipe"));
}

/// The bytes of a table's last cell, of the forms that the tests have: "1.4 MiB".
double mebibytes(const std::string& line) {
  return std::stod(line.substr(line.find(" s ") + 3));
}

TEST(ScheduleComparison, SchedulesMadeForTheJobAreFasterWithMoreMemory) {
  const Config config = four_ranks({"training.seq_len=256"});
  const ScheduleComparison all = compare_schedules(config, kSecond, {});
  const double least = mebibytes(line_of(all.table, "ZB-1p "));
  const double most = mebibytes(line_of(all.table, "ZB-2p "));
  EXPECT_LT(least, most);
  const auto seconds = [&](const std::string& name) {
    const std::string line = line_of(all.table, name);
    return std::stod(line.substr(line.find('%') + 1));
  };
  EXPECT_LT(seconds("ZB-1p "), seconds("1F1B "));
  EXPECT_LT(seconds("ZB-2p "), seconds("ZB-1p "));
  const auto between = static_cast<int64_t>((least + most) / 2 * 1024 * 1024);
  const ScheduleComparison within = compare_schedules(config, kSecond, {}, between);
  EXPECT_EQ(line_of(within.table, "ZB-2p "), "");
  const std::string made = line_of(within.table, "ZB-1.");
  EXPECT_NE(made, "") << within.table;
  EXPECT_LE(mebibytes(made), (least + most) / 2);
}

TEST(ScheduleComparison, TheFastestIsThatWithinTheMemory) {
  const Config config = four_ranks({"training.seq_len=256"});
  const ScheduleComparison all = compare_schedules(config, kSecond, {});
  EXPECT_NE(line_of(all.table, all.fastest + " "), "");
  EXPECT_EQ(all.schedule.micro_batches, 8);
  EXPECT_EQ(compare_schedules(config, kSecond, {}, 1).fastest, "");
}

TEST(ScheduleComparison, AJobWithoutAPipelineIsRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] {
                    compare_schedules(four_ranks({"parallelism.pipeline_parallel_degree=1"}), kSecond, {});
                  }),
                  "set parallelism.pipeline_parallel_degree to a number above 1");
}

}  // namespace
}  // namespace stepforge::testing
