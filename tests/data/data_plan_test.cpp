// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/data_plan.h"

#include <set>

#include <gtest/gtest.h>

#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

class DataPlanTest : public ::testing::Test {
 protected:
  DataPlan plan(std::vector<SourceSpec> sources) const {
    DataPlan made;
    made.sources = std::move(sources);
    made.records.documents = "line";
    made.seq_len = 8;
    made.seed = 1;
    made.cache_dir = folder_ / "cache";
    return made;
  }
  DataSet open(const DataPlan& made) const { return open_data(made, tokenizer_.get()); }
  std::string message(const DataPlan& made, bool with_tokenizer = true) const {
    return message_of<UsageError>([&] { open_data(made, with_tokenizer ? tokenizer_.get() : nullptr); });
  }
  std::filesystem::path lines(const std::string& name, int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) text += format("line {} of {}\n", i, name);
    return folder_.write(name, text);
  }

  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
};

TEST_F(DataPlanTest, MixesTextJsonLinesIndexedAndSynthetic) {
  const auto text = lines("a.txt", 50);
  const auto jsonl =
      folder_.write("b.jsonl", "{\"body\": \"some words in a line\"}\n{\"body\": \"and more\"}\n");
  Documents documents = counting_documents({100});
  write_dataset(folder_ / "pair", documents);
  const DataSet data = open(plan({{.path = text.string()},
                                  {.path = jsonl.string(), .field = "body"},
                                  {.path = (folder_ / "pair").string()},
                                  {.path = "", .format = "synthetic"}}));
  EXPECT_EQ(data.train->sources().size(), 4U);
  EXPECT_EQ(data.validation, nullptr);
  EXPECT_EQ(data.train->rows(0, 5).rows, 5);
  EXPECT_EQ(data.train->bytes_per_token(), std::nullopt);  // the size of the text is unknown
}

TEST_F(DataPlanTest, HoldsOutDocumentsForValidation) {
  auto made = plan({{.path = lines("a.txt", 500).string()}});
  made.validation_fraction = 0.2;
  const DataSet data = open(made);
  ASSERT_NE(data.validation, nullptr);
  const int64_t held_out = data.validation->sources()[0].source->tokens();
  const int64_t kept = data.train->sources()[0].source->tokens();
  EXPECT_NEAR(static_cast<double>(held_out) / static_cast<double>(held_out + kept), 0.2, 0.08);
  EXPECT_EQ(data.validation->total_rows(), (held_out - 1) / 8);
  EXPECT_GT(*data.validation->bytes_per_token(), 0.9);
  EXPECT_LT(*data.validation->bytes_per_token(), 1.0);  // end-of-text tokens have no bytes
}

TEST_F(DataPlanTest, TakesValidationFromItsOwnSources) {
  auto made = plan({{.path = lines("a.txt", 50).string()}});
  made.validation_sources = {{.path = lines("b.txt", 20).string()}};
  EXPECT_GT(open(made).validation->total_rows().value(), 0);
  made.validation_fraction = 0.1;
  EXPECT_CONTAINS(message(made), "both a validation fraction (0.1) and 1 validation source(s)");
}

TEST_F(DataPlanTest, HoldsOutSyntheticRowsThatTrainingNeverReads) {
  auto made = plan({{.format = "synthetic"}});
  made.synthetic.rows = 100;
  made.validation_fraction = 0.1;
  made.seq_len = 32;
  const DataSet data = open_data(made, tokenizer_.get());
  EXPECT_EQ(data.train->rows_per_epoch(), 90);
  EXPECT_EQ(data.validation->total_rows(), 10);
  std::set<std::vector<int32_t>> rows;
  for (int64_t i = 0; i < 90; ++i) rows.insert(data.train->rows(i, 1).tokens);
  for (int64_t i = 0; i < 10; ++i) rows.insert(data.validation->rows(i, 1).tokens);
  EXPECT_EQ(rows.size(), 100U);
}

TEST_F(DataPlanTest, SyntheticAndIndexedDataNeedNoTokenizer) {
  write_dataset(folder_ / "pair", counting_documents({100}));
  auto made = plan({{.path = (folder_ / "pair.idx").string()}, {.format = "synthetic"}});
  made.vocab_size = 1000;
  EXPECT_EQ(open_data(made, nullptr).train->rows(0, 3).rows, 3);
  EXPECT_CONTAINS(message(plan({{.path = lines("a.txt", 50).string()}}), false),
                  "is text, but no tokenizer is configured");
}

TEST_F(DataPlanTest, RefusesToSplitAnIndexedDataset) {
  write_dataset(folder_ / "pair", counting_documents({100}));
  auto made = plan({{.path = (folder_ / "pair").string(), .format = "bin"}});
  made.validation_fraction = 0.1;
  EXPECT_CONTAINS(message(made), "is a finished dataset");
}

TEST_F(DataPlanTest, RefusesADatasetOfAnotherTokenizer) {
  const auto dataset = write_dataset(folder_ / "pair", counting_documents({100}));
  folder_.write(
      "pair.json",
      "{\"documents\": 1, \"tokens\": 100, \"text_bytes\": 400, \"tokenizer_fingerprint\": \"other\"}");
  EXPECT_CONTAINS(message(plan({{.path = (folder_ / "pair").string()}})),
                  "was built with another tokenizer (fingerprint other");
}

TEST_F(DataPlanTest, HoldsOutTheLastRowsIfThereAreTooFewDocuments) {
  for (int book = 0; book < 20; ++book) {
    std::string text;
    for (int i = 0; i < 100; ++i) text += static_cast<char>('a' + (book * 7 + i) % 26);
    folder_.write(format("books/{:02}.txt", book), text);
  }
  auto made = plan({{.path = (folder_ / "books").string()}});
  made.records.documents = "file";
  made.validation_fraction = 0.02;
  made.shuffle = false;
  const DataSet data = open(made);
  ASSERT_NE(data.validation, nullptr);
  // 20 books of 101 tokens make 252 rows of 8.
  EXPECT_EQ(data.train->rows_per_epoch(), 247);
  EXPECT_EQ(data.validation->total_rows(), 5);
  made.validation_fraction = 0.0;
  const DataSet all = open(made);
  EXPECT_EQ(data.train->rows(0, 247).tokens, all.train->rows(0, 247).tokens);
  EXPECT_EQ(data.validation->rows(0, 5).tokens, all.train->rows(247, 5).tokens);
  ASSERT_EQ(data.notes.size(), 1U);
  EXPECT_CONTAINS(data.notes[0],
                  "too few documents to hold out 2% of them for validation; its last 5 of 252 rows");
}

TEST_F(DataPlanTest, NamesASourceThatIsTooSmall) {
  auto made = plan({{.path = folder_.write("a.txt", "just one line of text").string()}});
  made.records.documents = "file";
  made.validation_fraction = 0.5;
  made.seq_len = 30;
  EXPECT_CONTAINS(message(made), "its 1 documents have 22 tokens, too few for one row of 30 tokens");
  made.seq_len = 20;
  EXPECT_CONTAINS(message(made), "makes only one row of 20 tokens, so none can be held out");
}

TEST_F(DataPlanTest, NotesTheFilesOfAFolderThatAreNotRead) {
  folder_.write("in/a.txt", std::string(100, 'a'));
  folder_.write("in/b.pdf", "%PDF");
  const DataSet data = open(plan({{.path = (folder_ / "in").string()}}));
  ASSERT_EQ(data.notes.size(), 1U);
  EXPECT_CONTAINS(data.notes[0], "1 file (4 B) is not read: b.pdf; convert it to text");
}

TEST_F(DataPlanTest, RefusesImpossiblePlans) {
  auto made = plan({{.path = lines("a.txt", 50).string()}});
  made.validation_fraction = 1.0;
  EXPECT_CONTAINS(message(made), "validation fraction 1:");
  made.validation_fraction = std::nan("");
  EXPECT_CONTAINS(message(made), "validation fraction nan:");
  made = plan({{.path = lines("a.txt", 50).string()}});
  made.seq_len = 0;
  EXPECT_CONTAINS(message(made), "sequence length 0:");
  EXPECT_CONTAINS(message(plan({})), "no data source is given");
  EXPECT_CONTAINS(message(plan({{.path = ""}})), "a data source has no path");
  EXPECT_CONTAINS(message(plan({{.path = (folder_ / "none").string()}})), "none does not exist");
  EXPECT_CONTAINS(message(plan({{.path = lines("a.txt", 5).string(), .format = "parquet"}})),
                  "\"parquet\" is not a text format");
}

TEST_F(DataPlanTest, TheFingerprintDependsOnThePlan) {
  const auto a = lines("a.txt", 50);
  const auto print = [&](auto change) {
    auto made = plan({{.path = a.string()}});
    change(made);
    return open(made).train->fingerprint();
  };
  const auto base = print([](DataPlan&) {});
  EXPECT_EQ(base, print([](DataPlan& p) { p.workers = 1; }));
  EXPECT_NE(base, print([](DataPlan& p) { p.seed = 2; }));
  EXPECT_NE(base, print([](DataPlan& p) { p.seq_len = 9; }));
  EXPECT_NE(base, print([](DataPlan& p) { p.records.documents = "file"; }));
  EXPECT_NE(base, print([](DataPlan& p) { p.validation_fraction = 0.3; }));
}

}  // namespace
}  // namespace stepforge::testing
