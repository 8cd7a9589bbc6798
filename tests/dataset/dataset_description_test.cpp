// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/dataset_description.h"

#include <gtest/gtest.h>

#include "tests/dataset/test_support.h"

namespace stepforge::testing {
namespace {

DatasetDescription small_description(const Tokenizer& tokenizer) {
  DatasetDescription description;
  description.statistics = {.documents = 2, .tokens = 3, .text_bytes = 9};
  description.tokenizer_fingerprint = tokenizer.fingerprint();
  description.vocab_size = tokenizer.vocab_size();
  description.source = "from \xFF";
  description.build = "abc";
  description.program = "1.2";
  description.options = {{"deduplicate", true}};
  description.files = {{"a.txt", 9, "hash"}};
  description.files_in_all = 7;
  description.report.train = description.statistics;
  description.report.lengths[1] = 1;
  description.report.lengths[2] = 1;
  description.report.dropped["min_bytes"] = {.documents = 4, .tokens = 0, .text_bytes = 5};
  description.report.cut["too_long"] = {.documents = 1, .tokens = 2, .text_bytes = 3};
  description.report.bad_records = {"a.txt:3: bad"};
  return description;
}

TEST(DatasetDescription, IsReadBackAndCheckedAgainstThePair) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const auto dataset = write_dataset(folder / "pair", {{1, 2}, {3}});
  EXPECT_FALSE(read_description(*dataset));
  DatasetDescription written = small_description(*tokenizer);
  write_description(folder / "pair", written);
  const auto read = read_description(*dataset);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->statistics, written.statistics);
  EXPECT_EQ(read->tokenizer_fingerprint, tokenizer->fingerprint());
  EXPECT_EQ(read->vocab_size, 257);
  EXPECT_EQ(read->build, "abc");
  EXPECT_EQ(read->program, "1.2");
  EXPECT_EQ(read->options, written.options);
  ASSERT_EQ(read->files.size(), 1U);
  EXPECT_EQ(read->files[0].path, "a.txt");
  EXPECT_EQ(read->files[0].bytes, 9);
  EXPECT_EQ(read->files[0].hash, "hash");
  EXPECT_EQ(read->files_in_all, 7);
  EXPECT_EQ(read->report, written.report);
  written.statistics.tokens = 4;
  write_description(folder / "pair", written);
  EXPECT_CONTAINS(message_of<FormatError>([&] { read_description(*dataset); }), "do not belong together");
}

TEST(DatasetDescription, OfAnOlderVersionIsRead) {
  const TempFolder folder;
  const auto dataset = write_dataset(folder / "pair", {{1, 2}, {3}});
  folder.write("pair.json",
               "{\"documents\": 2, \"tokens\": 3, \"text_bytes\": 9, \"tokenizer_fingerprint\": \"abc\", "
               "\"vocab_size\": 257, \"source\": \"a.txt\"}");
  const auto read = read_description(*dataset);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->statistics.text_bytes, 9);
  EXPECT_EQ(read->tokenizer_fingerprint, "abc");
  EXPECT_EQ(read->build, "");
}

TEST(DatasetDescription, ThatIsMalformedIsRefusedByName) {
  const TempFolder folder;
  const auto dataset = write_dataset(folder / "pair", {{1, 2}, {3}});
  const std::string old =
      "{\"documents\": 2, \"tokens\": 3, \"text_bytes\": 9, \"tokenizer_fingerprint\": \"abc\", ";
  for (const std::string& bad :
       {std::string("[]"), std::string("{}"), std::string("{\"documents\": -1}"),
        std::string("{\"documents\": 2.5}"), std::string("not json"),
        std::string("{\"documents\": 2, \"tokens\": 3, \"text_bytes\": 1e300}"),
        std::string("{\"documents\": 2, \"tokens\": 3, \"text_bytes\": 9}"), old + "\"build\": 7}",
        old + "\"build\": \"x\"}", old + "\"build\": \"x\", \"options\": {}, \"files\": {}}",
        old + "\"build\": \"x\", \"options\": {}, \"files\": {\"count\": 1, \"first\": []}, \"report\": "
              "{\"train\": {\"documents\": 9223372036854775807}}}"}) {
    folder.write("pair.json", bad);
    SCOPED_TRACE(bad);
    EXPECT_CONTAINS(message_of<FormatError>([&] { read_description(*dataset); }), "pair.json");
  }
}

}  // namespace
}  // namespace stepforge::testing
