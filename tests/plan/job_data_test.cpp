// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_data.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"
#include "stepforge/dataset/indexed_dataset_writer.h"
#include "stepforge/plan/data_source_kind.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(JobTokenizer, RefusesToTrainOnTokenIds) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "pair", {TokenType::u16});
  writer.add_document(std::vector<int32_t>(100, 65000));
  writer.publish();
  Config config;
  config.run_dir = folder / "run";
  config.tokenizer.type = TokenizerType::bpe;
  config.data.sources = {{.path = folder / "pair.bin"}};
  Logger log(LogLevel::error);
  const std::string message = message_of<UsageError>([&] { job_tokenizer(config, log); });
  EXPECT_CONTAINS(message, "data.sources names none");
  EXPECT_CONTAINS(message,
                  "pair.bin): set tokenizer.path to the tokenizer that the token ids were made with");
}

TEST(JobTokenizer, LeftByAStartWithOtherSettingsIsTrainedAnewUnlessACheckpointNeedsIt) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the river was wide and the road was long\n";
  folder.write("tale.txt", text);
  Config config;
  config.run_dir = folder / "run";
  config.data.sources = {{.path = folder / "tale.txt"}};
  config.tokenizer.type = TokenizerType::bpe;
  config.tokenizer.vocab_size = 270;
  make_byte_tokenizer()->save_pretrained(folder / "run/tokenizer");
  Logger log(LogLevel::error);
  EXPECT_EQ(job_tokenizer(config, log)->vocab_size(), 270);
  config.tokenizer.vocab_size = 265;
  EXPECT_EQ(job_tokenizer(config, log)->vocab_size(), 265);
  folder.write("run/checkpoint/step-1/manifest.json", "{}");
  config.tokenizer.vocab_size = 260;
  EXPECT_EQ(job_tokenizer(config, log)->vocab_size(), 265);
}

TEST(DataPlanOfAConfig, HasTheTreeOfSources) {
  Config config;
  config.data.sources = {
      {.path = "a", .epochs = 0.5},
      {.path = "",
       .name = "code",
       .epochs = 2.0,
       .combine = SourceCombine::concat,
       .sources = {{.path = "b", .format = DataFormat::bin}, {.path = "c", .field = "body"}}}};
  config.data.weights_by = ShareOf::samples;
  config.data.temperature = 3.0;
  config.training.global_batch_size = 24;
  const DataPlan plan = data_plan(config, 256);
  ASSERT_EQ(plan.sources.size(), 2U);
  EXPECT_EQ(plan.sources[0].epochs, 0.5);
  EXPECT_FALSE(plan.sources[0].concat);
  EXPECT_EQ(plan.sources[1].name, "code");
  EXPECT_TRUE(plan.sources[1].concat);
  ASSERT_EQ(plan.sources[1].sources.size(), 2U);
  EXPECT_EQ(plan.sources[1].sources[0].format, "bin");
  EXPECT_EQ(plan.sources[1].sources[0].epochs, std::nullopt);
  EXPECT_EQ(plan.sources[1].sources[1].field, "body");
  EXPECT_EQ(plan.weights_by, ShareOf::samples);
  EXPECT_EQ(plan.temperature, 3.0);
  EXPECT_FALSE(plan.steps.fill_epochs);
  config.data.epoch_remainder = EpochRemainder::smaller_step;
  EXPECT_TRUE(data_plan(config, 256).steps.fill_epochs);
  EXPECT_EQ(data_plan(config, 256).steps.rows_per_step, 24);
}

/// Row n has the token n.
class Numbers : public RowSource {
 public:
  explicit Numbers(int64_t seq_len) : seq_len_(seq_len) {}
  const std::string& name() const override { return name_; }
  const std::string& fingerprint() const override { return name_; }
  int64_t rows() const override { return 10; }
  int64_t seq_len() const override { return seq_len_; }
  int64_t tokens() const override { return rows() * seq_len_; }
  std::optional<int64_t> text_bytes() const override { return std::nullopt; }
  void read(int64_t number, Row& row) const override {
    row = {};
    row.tokens.assign(static_cast<size_t>(seq_len_) + 1, static_cast<int32_t>(number));
  }

 private:
  int64_t seq_len_;
  std::string name_ = "numbers";
};

/// The path of the source is the length of its rows.
Config with_numbers(const Strings& more = {}) {
  auto registry = std::make_shared<Registry>();
  registry->add(DataSourceKind{"numbers", [](const DataSourceRequest& request) {
                                 EXPECT_EQ(request.vocab_size, 99);
                                 return std::make_shared<Numbers>(std::stoll(request.source.path));
                               }});
  Strings settings = {"data.sources=[{kind = \"numbers\", path = \"4\"}]", "training.seq_len=4",
                      "data.shuffle=false"};
  settings.insert(settings.end(), more.begin(), more.end());
  return load_config(std::nullopt, settings, ConfigUse::data, {}, registry).config;
}

TEST(DataPlanOfAConfig, OpensTheSourceOfAPlugin) {
  const DataSet data = open_data(data_plan(with_numbers({"data.validation_fraction=0.2"}), 99), nullptr);
  EXPECT_EQ(data.sources.at(0).name, "numbers");
  EXPECT_EQ(data.sources.at(0).rows, 8);
  ASSERT_NE(data.validation, nullptr);
  EXPECT_EQ(data.validation->rows(0, 2).tokens, (std::vector<int32_t>{8, 8, 8, 8, 9, 9, 9, 9}));
}

TEST(DataPlanOfAConfig, RefusesASourceOfAPluginThatDoesNotFit) {
  const auto refusal = [](const Strings& more) {
    return message_of<UsageError>([&] { open_data(data_plan(with_numbers(more), 99), nullptr); });
  };
  EXPECT_CONTAINS(refusal({"data.sources.0.path=5"}),
                  "numbers: its rows have 5 tokens, but training.seq_len is 4");
  EXPECT_CONTAINS(refusal({"data.sources.0.kind=number"}), "data.sources.0.kind",
                  "did you mean \"numbers\"?");
  EXPECT_CONTAINS(refusal({"data.sources.0.format=jsonl"}), "a plug-in's data source has no format");
  Config config = with_numbers();
  config.extensions = {};
  EXPECT_CONTAINS(message_of<UsageError>([&] { data_plan(config, 99); }), "no data source \"numbers\"");
}

}  // namespace
}  // namespace stepforge::testing
