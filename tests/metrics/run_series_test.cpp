// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/run_series.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTwoStepsAndAValidation =
    R"J({"kind":"train","step":1,"wall_time":1,"loss_metrics/global_avg_loss":4.5,"grad_norm":2,"lr":1e-3,"throughput(tps)":1000,"n_tokens_seen":256}
{"kind":"validation","step":1,"wall_time":1,"validation_metrics/global_avg_loss":4.75}
{"kind":"train","step":2,"wall_time":2,"loss_metrics/global_avg_loss":"Infinity","n_tokens_seen":512}
{"kind":"event","step":2,"wall_time":2,"grad_norm":99}
{"kind":"tr)J";

TEST(ReadRunSeries, CollectsRecordsIntoCurves) {
  const TempFolder folder;
  fs::create_directory(folder / "small");
  write_text(folder / "small/metrics.jsonl", kTwoStepsAndAValidation);
  for (const fs::path& path : {folder / "small", folder / "small/", folder / "small/metrics.jsonl"}) {
    const RunSeries run = read_run_series(path);
    EXPECT_EQ(run.name, "small");
    EXPECT_EQ(run.loss.x, (std::vector<double>{1, 2}));
    EXPECT_EQ(run.loss.y[0], 4.5);
    EXPECT_TRUE(std::isnan(run.loss.y[1]));
    EXPECT_EQ(run.loss.last(), 4.5);
    EXPECT_EQ(run.validation_loss.y, (std::vector<double>{4.75}));
    EXPECT_EQ(run.grad_norm.y, (std::vector<double>{2}));
    EXPECT_EQ(run.lr.y, (std::vector<double>{1e-3}));
    EXPECT_EQ(run.tokens_per_second.y, (std::vector<double>{1000}));
    EXPECT_EQ(run.tokens_seen, 512);
  }
}

/// Three starts: 1 to 4, killed; from 2 to 3 (the later steps are those of the last start); from 3.
TEST(ReadRunSeries, MarksWhereTheRunWasContinued) {
  const TempFolder folder;
  std::string lines;
  for (int step = 1; step <= 4; ++step) {
    const int time = 3600 * step + (step > 3 ? 36000 : 0);
    lines += format(
        R"({{"kind":"train","step":{},"wall_time":{},"loss_metrics/global_avg_loss":4,"n_tokens_seen":{}}})",
        step, time, 100 * step);
    lines += '\n';
  }
  write_text(folder / "metrics.jsonl", lines);
  const auto start = [](int begin, int end, const std::string& reason) {
    return format(
        R"({{"host":"h","pid":1,"time":"t","version":"v","commit":"c","begin_step":{},"end_step":{},)"
        R"("tokens":0,"seconds":1,"exit_reason":"{}"}})",
        begin, end, reason);
  };
  write_text(folder / "run.json", format(R"({{"format_version":1,"starts":[{},{},{}]}})", start(0, 4, "died"),
                                         start(2, 3, "interrupted"), start(3, 4, "completed")));
  const RunSeries steps = read_run_series(folder.path());
  ASSERT_EQ(steps.resumes.size(), 2U);
  EXPECT_EQ(steps.resumes[0].x, 2);
  EXPECT_TRUE(steps.resumes[0].died);
  EXPECT_EQ(steps.resumes[1].x, 3);
  EXPECT_FALSE(steps.resumes[1].died);
  EXPECT_EQ(read_run_series(folder.path(), PlotX::tokens).loss.x, (std::vector<double>{100, 200, 300, 400}));
  const RunSeries hours = read_run_series(folder.path(), PlotX::hours);
  EXPECT_EQ(hours.loss.x, (std::vector<double>{0, 1, 1, 1})) << "pauses before a start do not count";
  EXPECT_EQ(hours.steps, 4);
}

TEST(ReadRunSeries, NamesAMissingFile) {
  const TempFolder folder;
  EXPECT_EQ(message_of<UsageError>([&] { read_run_series(folder / "nowhere"); }),
            (folder / "nowhere").string() + " does not exist; give a run folder, or a metrics.jsonl");
  EXPECT_EQ(message_of<UsageError>([&] { read_run_series(folder.path()); }),
            (folder / "metrics.jsonl").string() + " does not exist; give a run folder, or a metrics.jsonl");
  write_text(folder / "metrics.jsonl", "");
  EXPECT_EQ(message_of<UsageError>([&] { read_run_series(folder.path()); }),
            (folder / "metrics.jsonl").string() + " has no training step yet");
}

TEST(SmoothedCurve, KeepsAConstantAndGaps) {
  Curve curve;
  for (int i = 0; i < 50; ++i) curve.add(i, i == 20 ? NAN : 3.0);
  const Curve smooth = smoothed_curve(curve);
  ASSERT_EQ(smooth.x, curve.x);
  for (size_t i = 0; i < 50; ++i) {
    if (i == 20) {
      EXPECT_TRUE(std::isnan(smooth.y[i]));
    } else {
      EXPECT_NEAR(smooth.y[i], 3, 1e-12);
    }
  }
}

TEST(SmoothedCurve, DoesNotLagBehindALine) {
  Curve curve;
  for (int i = 0; i < 101; ++i) curve.add(i, i);
  const Curve smooth = smoothed_curve(curve);
  for (const size_t i : {0U, 1U, 50U, 99U, 100U})
    EXPECT_NEAR(smooth.y[i], static_cast<double>(i), 1e-9) << "at the ends either";
}

TEST(SmoothedCurve, AtTheEndIsLessNoisyThanTheCurve) {
  Curve curve;
  for (int i = 0; i < 4000; ++i) curve.add(i, i % 2 == 0 ? 1 : -1);
  EXPECT_LT(std::abs(smoothed_curve(curve).y.back()), 0.3);
}

TEST(ThinnedCurve, KeepsEveryExtremeAndTheEnds) {
  Curve curve;
  for (int i = 0; i < 100000; ++i) curve.add(i, std::sin(i * 0.7));
  curve.y[54321] = 40;
  curve.y[77777] = -40;
  const Curve thin = thinned_curve(curve, 100);
  EXPECT_LE(thin.x.size(), 4U * 101U);
  EXPECT_EQ(*std::max_element(thin.y.begin(), thin.y.end()), 40);
  EXPECT_EQ(*std::min_element(thin.y.begin(), thin.y.end()), -40);
  EXPECT_EQ(thin.x.front(), 0);
  EXPECT_EQ(thin.x.back(), 99999);
  EXPECT_TRUE(std::is_sorted(thin.x.begin(), thin.x.end()));
}

TEST(ThinnedCurve, KeepsAGapOfOnePoint) {
  Curve curve;
  for (int i = 0; i < 10000; ++i) curve.add(i, i == 5005 ? NAN : 1.0);
  const Curve thin = thinned_curve(curve, 10);
  EXPECT_EQ(std::count_if(thin.y.begin(), thin.y.end(), [](double value) { return std::isnan(value); }), 1);
}

TEST(ThinnedCurve, OfOneStepHasFourPoints) {
  Curve curve;
  for (int i = 0; i < 10000; ++i) curve.add(7, i % 100);
  EXPECT_EQ(thinned_curve(curve, 10).y, (std::vector<double>{0, 99, 99}));
}

TEST(ThinnedCurve, LeavesShortCurvesAlone) {
  Curve curve;
  for (int i = 0; i < 40; ++i) curve.add(i, i);
  EXPECT_EQ(thinned_curve(curve, 10).x, curve.x);
}

}  // namespace
}  // namespace stepforge::testing
