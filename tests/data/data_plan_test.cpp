// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/data_plan.h"

#include <set>

#include <gtest/gtest.h>

#include "stepforge/data/preset_packing.h"
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

TEST_F(DataPlanTest, APairBesideAFolderOfItsNameIsReadAndTheFolderWithASlash) {
  write_dataset(folder_ / "books", counting_documents({100}));
  folder_.write("books/a.txt", "some text that is longer than a row of it");
  const std::string path = (folder_ / "books").string();
  for (const char* format_name : {"auto", "bin"}) {
    const DataSet data = open(plan({{.path = path, .format = format_name}}));
    EXPECT_EQ(data.train->sources()[0].source->tokens(), 100);
    ASSERT_FALSE(data.notes.empty());
    EXPECT_CONTAINS(data.notes[0], "the pair of this name is read", "books/\" would be the folder");
  }
  EXPECT_LT(open(plan({{.path = path + "/"}})).train->sources()[0].source->tokens(), 60);
}

TEST_F(DataPlanTest, ReadsTablesPatternsAndTokenFiles) {
  folder_.write("a.csv", "body,id\n\"some words, and a\nline\",1\nand more words,2\n");
  lines("b1.txt", 20);
  lines("b2.txt", 20);
  folder_.write("c.bin", std::string(200, 'x'));
  const DataSet data = open(plan({{.path = (folder_ / "a.csv").string(), .field = "body"},
                                  {.path = (folder_ / "b?.txt").string()},
                                  {.path = (folder_ / "c.bin").string(), .format = "tokens_u16"}}));
  ASSERT_EQ(data.train->sources().size(), 3U);
  EXPECT_EQ(data.train->sources()[2].source->tokens(), 100);
  EXPECT_EQ(data.train->sources()[2].source->name(), (folder_ / "c.bin").string());
  EXPECT_CONTAINS(message(plan({{.path = "s3://bucket/books"}})), "is a remote address");
  EXPECT_CONTAINS(message(plan({{.path = (folder_ / "none/*.txt").string()}})), "nothing matches");
}

TEST_F(DataPlanTest, DocumentsOfTokenFilesEndWithTheEndOfTextOfTheTokenizer) {
  std::string tokens;
  for (int i = 0; i < 40; ++i) {
    const int32_t id = i % 10 == 9 ? tokenizer_->eos_id().value() : 'a';
    tokens += {static_cast<char>(id & 0xFF), static_cast<char>(id >> 8)};
  }
  folder_.write("c.bin", tokens);
  auto made = plan({{.path = (folder_ / "c.bin").string(), .format = "tokens_u16"}});
  made.seq_len = 10;
  made.packing = Packing::none;
  EXPECT_EQ(open(made).train->rows_per_epoch(), 4);
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
  // An end-of-text token has no bytes, but the first token of a document is not predicted.
  EXPECT_NEAR(*data.validation->bytes_per_token(), 1.0, 0.01);
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
  made.seed = 5;  // by which none of the books is held out
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

TEST_F(DataPlanTest, OpensATreeOfNamedSources) {
  write_dataset(folder_ / "pair", counting_documents({100, 61}));
  const std::string a = lines("a.txt", 50).string();
  auto made = plan(
      {{.path = a},
       {.weight = 3,
        .name = "group",
        .concat = true,
        .sources = {{.path = (folder_ / "pair").string(), .name = "numbers"}, {.format = "synthetic"}}}});
  made.synthetic.rows = 20;
  const DataSet data = open(made);
  EXPECT_EQ(data.train->source_names(), (std::vector<std::string>{a, "numbers", "synthetic"}));
  ASSERT_EQ(data.sources.size(), 3U);
  EXPECT_EQ(data.sources[0].share, 0.25);
  EXPECT_EQ(data.sources[0].path, a);
  EXPECT_EQ(data.sources[0].documents, 50);
  EXPECT_EQ(data.sources[1].path, (folder_ / "pair").string());
  EXPECT_EQ(data.sources[1].documents, 2);
  EXPECT_EQ(data.sources[1].tokens, 161);
  EXPECT_EQ(data.sources[1].rows, 20);
  EXPECT_EQ(data.sources[1].share, 0.375);
  EXPECT_EQ(data.sources[1].epochs_per_million, 0.375e6 / 20);
  EXPECT_EQ(data.sources[2].documents, 20);
  EXPECT_EQ(leaves_of(made.sources).size(), 3U);
  EXPECT_CONTAINS(describe_sources(data)[2], "numbers");
  made.sources[1].sources[0].epochs = 2;
  EXPECT_CONTAINS(message(made), "data.sources.1.sources.0 (numbers): the sources of a group with combine");
}

TEST_F(DataPlanTest, HoldsOutDocumentsOfSourcesInGroups) {
  auto made = plan({{.path = lines("a.txt", 200).string()},
                    {.sources = {{.path = lines("b.txt", 200).string(), .name = "b"}}}});
  made.validation_fraction = 0.2;
  const DataSet data = open(made);
  EXPECT_EQ(data.validation->source_names(), (std::vector<std::string>{made.sources[0].path, "b"}));
}

TEST_F(DataPlanTest, SharesAndEpochsFollowThePlan) {
  auto made = plan({{.path = lines("a.txt", 50).string()}, {.path = lines("b.txt", 500).string()}});
  const double ratio =
      static_cast<double>(open(made).sources[1].tokens) / static_cast<double>(open(made).sources[0].tokens);
  made.temperature = 1.0;
  EXPECT_NEAR(open(made).sources[1].share, ratio / (1.0 + ratio), 1e-3);
  made.temperature = 0.0;
  made.packing = Packing::none;
  made.seq_len = 64;  // more than a line
  made.weights_by = ShareOf::tokens;
  const DataSet by_tokens = open(made);
  const auto tokens = [&](size_t i) {
    const SourceStatistics& source = by_tokens.sources[i];
    return source.share * static_cast<double>(source.tokens) / static_cast<double>(source.rows);
  };
  EXPECT_NEAR(tokens(0) / tokens(1), 1.0, 1e-3);
  made.steps = {.rows_per_step = 64, .fill_epochs = true};
  EXPECT_EQ(open(made).train->rows_per_epoch(), 576);
}

TEST_F(DataPlanTest, APresetGivesTheRowsThatAPackingMade) {
  auto made = plan({{.path = lines("a.txt", 50).string()}});
  made.seq_len = 48;
  made.packing = Packing::soft;
  made.validation_fraction = 0.2;
  const DataSet packed = open(made);
  made.preset = folder_ / "packed";
  write_pack_table(made.preset, *packed.train->sources()[0].source->pack_table());
  made.packing = Packing::preset;
  made.seed = 1;
  const DataSet again = open(made);
  EXPECT_TRUE(same(again.train->rows(0, 40), packed.train->rows(0, 40)));
  EXPECT_NE(again.train->fingerprint(), packed.train->fingerprint());
  // The preset does not describe the documents that are held out.
  made.packing = Packing::best_fit;
  EXPECT_EQ(again.validation->fingerprint(), open(made).validation->fingerprint());
  made.packing = Packing::preset;
  made.sources.push_back(made.sources[0]);
  EXPECT_CONTAINS(message(made), "a preset has the rows of one source, but 2 are given");
}

TEST_F(DataPlanTest, NotesTokensThatAPresetLeavesOut) {
  auto made = plan({{.path = lines("a.txt", 5).string()}});
  made.seq_len = 48;
  made.packing = Packing::preset;
  made.preset = folder_ / "packed";
  write_pack_table(made.preset, {.pieces = {{0, 0, 5}}, .row_begins = {0, 1}, .unused_tokens = 1});
  const DataSet data = open(made);
  EXPECT_EQ(data.train->rows_per_epoch(), 1);
  ASSERT_EQ(data.notes.size(), 1U);
  EXPECT_CONTAINS(data.notes[0], "packed: 75 of 80 tokens are not used");
}

TEST_F(DataPlanTest, BalancesTheStepsOfAllSources) {
  auto made = plan({{.path = lines("a.txt", 300).string()}, {.format = "synthetic"}});
  made.synthetic.document_length = 3;
  made.seq_len = 64;
  made.packing = Packing::budget;
  const DataSet drawn = open(made);
  made.steps = {.rows_per_step = 16, .balance = true};
  const DataSet balanced = open(made);
  EXPECT_NE(balanced.train->fingerprint(), drawn.train->fingerprint());
  EXPECT_EQ(balanced.train->rows_per_epoch(), drawn.train->rows_per_epoch());
}

TEST_F(DataPlanTest, SplitsTheDocumentsOfAFinishedDataSetInOrder) {
  write_dataset(folder_ / "pair", counting_documents({100, 100, 100, 50, 30, 20}));
  auto made = plan({{.path = (folder_ / "pair").string(), .name = "pair"}});
  made.vocab_size = 1000;
  const auto whole = open_data(made, nullptr).train;
  made.split = SplitRatios::parse("3,1,2");
  made.shuffle = false;
  const DataSet data = open_data(made, nullptr);
  EXPECT_EQ(data.train->sources()[0].source->tokens(), 300);
  EXPECT_EQ(data.validation->sources()[0].source->tokens(), 50);
  EXPECT_EQ(data.test->sources()[0].source->tokens(), 50);
  EXPECT_EQ(data.test->source_names(), std::vector<std::string>{"pair"});
  const int64_t first = IndexedDataset(folder_ / "pair").index().document_begin(3);
  std::vector<int32_t> expected(8);
  IndexedDataset(folder_ / "pair").read(first, expected);
  EXPECT_EQ(data.validation->rows(0, 1).tokens, expected) << "the first document after those for training";
  made.split = SplitRatios::parse("1");
  made.shuffle = true;
  EXPECT_EQ(open_data(made, nullptr).train->fingerprint(), whole->fingerprint());
  made.split = SplitRatios::parse("100,1");
  EXPECT_CONTAINS(message(made), "leaves none of its 6 documents for validation");
  made.sources = {{.path = lines("a.txt", 50).string()}};
  EXPECT_CONTAINS(message(made), "a.txt is not a finished data set, and data.split divides those only");
  made.sources = {{.format = "synthetic"}};
  EXPECT_CONTAINS(message(made), "synthetic is not a finished data set");
}

TEST_F(DataPlanTest, FinishedDataSetsCanOnlyBeCut) {
  const TempFolder folder;
  write_dataset(folder / "pair", counting_documents({100}));
  DataPlan plan;
  plan.sources = {{.path = (folder / "pair").string()}};
  plan.records.limit = {.rule = TooLong::drop, .tokens = 8};
  plan.packing = Packing::best_fit;
  plan.seq_len = 8;
  plan.vocab_size = 300;
  EXPECT_CONTAINS(message_of<UsageError>([&] { open_data(plan, nullptr); }),
                  "long documents can only be cut");
}

}  // namespace
}  // namespace stepforge::testing
