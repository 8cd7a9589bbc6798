// SPDX-License-Identifier: Apache-2.0
// Training on data sets that `data build` made, through the program.
#include <map>

#include "stepforge/metrics/jsonl.h"
#include "tests/app/program.h"
#include "tests/support/small_run.h"

namespace stepforge::testing {
namespace {

/// Two finished data sets of 100 and 60 lines.
class DataRun : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, lines] : std::map<std::string, int>{{"a", 100}, {"b", 60}}) {
      write_text(folder_ / (name + ".txt"), some_text(lines));
      output_of({"data", "build", "--input", (folder_ / (name + ".txt")).string(), "--tokenizer", "bytes",
                 "--documents", "line", "--output-prefix", (folder_ / name).string()});
    }
  }

  Strings settings(const std::string& run) const {
    const auto source = [&](const std::string& name) {
      return format("{{name=\"{}\",path=\"{}\"}}", name, (folder_ / (name + "_text_document")).string());
    };
    return small_run(folder_ / run) + Strings{format("data.sources=[{},{}]", source("a"), source("b")),
                                              "data.split=8,1,1",
                                              "training.steps=0",
                                              "training.epochs=1",
                                              "data.epoch_remainder=smaller_step",
                                              "metrics.log_freq=1"};
  }

  std::vector<MetricsRecord> records_of(const std::string& run) const {
    return read_jsonl(folder_ / run / "metrics.jsonl");
  }

  TempFolder folder_;
};

TEST_F(DataRun, AnEpochEndsWithASmallerStepAndTheTestPartIsEvaluated) {
  ASSERT_EQ(run_program(Strings{"train"} + settings("run")).exit_code, 0);
  const std::string shown = output_of(Strings{"data", "show"} + settings("run"));
  const size_t place = shown.find(" rows of 32 tokens in an epoch");
  ASSERT_NE(place, std::string::npos) << shown;
  const int64_t rows = std::stoll(shown.substr(shown.rfind('\n', place) + 1));
  EXPECT_EQ(rows % 4, 0) << "rows without labels fill the last step";
  EXPECT_EQ(records_of("run").back().step, rows / 4);
  const std::string run = (folder_ / "run").string();
  const std::string validation = output_of({"eval", run});
  const std::string test = output_of({"eval", run, "--split", "test"});
  EXPECT_GT(number_after(validation, "loss"), 0.0);
  EXPECT_GT(number_after(test, "loss"), 0.0);
  EXPECT_NE(number_after(test, "loss"), number_after(validation, "loss"));
  EXPECT_CONTAINS(run_program({"eval", run, "--split", "test", "--data", (folder_ / "a.txt").string()}).err,
                  "use one of them");
}

TEST_F(DataRun, LogsTheLossOfEachSourceEqualOnAnyNumberOfRanks) {
  ASSERT_EQ(run_program(Strings{"train"} + settings("one")).exit_code, 0);
  const ProgramResult two = run_program(Strings{"launch", "--nproc", "2", "train"} + settings("two"));
  ASSERT_EQ(two.exit_code, 0) << two.err;
  const auto expected = records_of("one");
  const auto found = records_of("two");
  ASSERT_EQ(found.size(), expected.size());
  int compared = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const char* name : {"loss_metrics/source/a", "loss_metrics/source/b"}) {
      ASSERT_EQ(found[i].find(name).has_value(), expected[i].find(name).has_value()) << i;
      if (!expected[i].find(name)) continue;
      EXPECT_NEAR(*found[i].find(name), *expected[i].find(name), 1e-5) << name << " in record " << i;
      ++compared;
    }
  }
  EXPECT_GT(compared, static_cast<int>(expected.size())) << "most steps have rows of both";
}

}  // namespace
}  // namespace stepforge::testing
