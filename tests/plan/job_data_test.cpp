// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_data.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/data/indexed_dataset_writer.h"
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

TEST(DataPlanOfAConfig, HasTheTreeOfSources) {
  Config config;
  config.data.sources = {
      {.path = "a", .epochs = 0.5},
      {.path = "",
       .name = "code",
       .epochs = 2.0,
       .combine = SourceCombine::concat,
       .sources = {{.path = "b", .format = DataFormat::bin}, {.path = "c", .field = "body"}}}};
  config.data.weights_by = DataWeightsBy::samples;
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

}  // namespace
}  // namespace stepforge::testing
