// SPDX-License-Identifier: Apache-2.0
// The demo's model on several ranks. Long tests; the fast tests of ranks use a smaller model.
#include <cmath>

#include "stepforge/base/json.h"
#include "tests/app/program.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

constexpr int steps = 16;

class DemoModelLongTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!long_tests()) GTEST_SKIP() << "two minutes";
    std::ofstream text(folder_ / "text.txt");  // the sources of Stepforge, which are always at hand
    for (const auto& file : fs::recursive_directory_iterator(source_dir() / "stepforge")) {
      if (file.is_regular_file()) text << read_file(file.path());
    }
    train("one", {}, steps);
    ASSERT_EQ(losses("one").size(), static_cast<size_t>(steps));
    ASSERT_LT(losses("one").back(), losses("one").front() - 0.5);
  }

  Strings job(const std::string& run, int last_step) const {
    return {"train",
            "preset=demo",
            format("run_dir={}", (folder_ / run).string()),
            format("data.sources=[{{path=\"{}\"}}]", (folder_ / "text.txt").string()),
            format("data.cache_dir={}", (folder_ / "cache").string()),
            "metrics.log_freq=1",
            "training.local_batch_size=2",
            "training.global_batch_size=8",
            format("training.steps={}", last_step),
            format("lr_scheduler.total_steps={}", steps),
            "lr_scheduler.warmup_steps=4",
            "checkpoint.interval=4",
            "checkpoint.keep_latest_k=0"};
  }

  void train(const std::string& run, const Strings& before, int last_step,
             const fs::path& program = program_path()) const {
    Child child(before + job(run, last_step), "", {}, program);
    const ProgramResult result = child.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }

  Strings launched(int ranks) const {
    return {"launch", "--nproc", std::to_string(ranks), "--log-dir", (folder_ / "logs").string()};
  }

  std::vector<double> losses(const std::string& run) const {
    std::vector<double> all;
    std::ifstream lines(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      if (json["kind"] == "train") all.push_back(json["loss_metrics/global_avg_loss"].get<double>());
    }
    return all;
  }

  void expect_curve_of_one_rank(const std::string& run) const {
    const std::vector<double> expected = losses("one");
    const std::vector<double> found = losses(run);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << "step " << i + 1;
  }

  const TempFolder folder_;
};

TEST_F(DemoModelLongTest, HasTheSameLossCurveOnTwoRanks) {
  train("two", launched(2), steps);
  expect_curve_of_one_rank("two");
}

TEST_F(DemoModelLongTest, HasTheSameLossCurveUnderTorchrun) {
  const fs::path agent = torchrun();
  if (agent.empty()) GTEST_SKIP() << "no torchrun: tools/oracle/oracle.sh installs one";
  train("two", {"--no-python", "--nproc-per-node", "2", "--standalone", program_path().string()}, steps,
        agent);
  expect_curve_of_one_rank("two");
}

TEST_F(DemoModelLongTest, ResumesOnOtherNumbersOfRanks) {
  train("moved", {}, 4);
  train("moved", launched(2), 8);
  train("moved", launched(4), 12);
  train("moved", {}, steps);
  expect_curve_of_one_rank("moved");
}

}  // namespace
}  // namespace stepforge::testing
