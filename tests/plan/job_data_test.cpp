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

}  // namespace
}  // namespace stepforge::testing
