// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/tokenize.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

/// Tokenizes with the byte tokenizer into a published pair for training and one for validation.
TokenizeResult build(const TempFolder& folder, const TextSource& source, const TokenizeOptions& options,
                     const TokenizeProgressFunction& progress = {}, const TextEnds& ends = {}) {
  const auto tokenizer = make_byte_tokenizer();
  IndexedDatasetWriter train(folder / "train", {TokenType::u16});
  IndexedDatasetWriter validation(folder / "validation", {TokenType::u16});
  const auto result = tokenize(source, PlainText(*tokenizer, ends), options, train, &validation, progress);
  train.publish();
  validation.publish();
  return result;
}

std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += format("line number {}\n", i);
  return text;
}

/// The documents of a pair as text, end-of-text tokens shown as "$".
std::vector<std::string> texts_of(const IndexedDataset& dataset) {
  std::vector<std::string> texts;
  for (int64_t d = 0; d < dataset.index().documents(); ++d) {
    std::vector<int32_t> tokens(
        static_cast<size_t>(dataset.index().document_begin(d + 1) - dataset.index().document_begin(d)));
    dataset.read(dataset.index().document_begin(d), tokens);
    texts.emplace_back();
    for (const int32_t token : tokens) texts.back() += token == 256 ? '$' : static_cast<char>(token);
  }
  return texts;
}

TEST(Tokenize, EndsEachDocumentWithTheEndOfTextToken) {
  const TempFolder folder;
  const TextSource source({.paths = {folder.write("a.txt", "ab\nc\n")}, .mode = DocumentMode::line});
  const auto result = build(folder, source, {});
  EXPECT_EQ(texts_of(IndexedDataset(folder / "train")), (std::vector<std::string>{"ab$", "c$"}));
  EXPECT_EQ(result.train, (DatasetStatistics{.documents = 2, .tokens = 5, .text_bytes = 3}));
  build(folder, source, {}, {}, {.eos = false});
  EXPECT_EQ(texts_of(IndexedDataset(folder / "train")), (std::vector<std::string>{"ab", "c"}));
}

TEST(Tokenize, WorkersAndChunksDoNotChangeTheBytes) {
  const TempFolder folder;
  folder.write("in/a.txt", numbered_lines(500));
  folder.write("in/b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  folder.write("in/c.txt", numbered_lines(300));
  const TextSource source({.paths = {folder / "in"}, .mode = DocumentMode::line});
  build(folder, source, {.workers = 1});
  const std::string bin = read_file(folder / "train.bin");
  const std::string idx = read_file(folder / "train.idx");
  for (const int workers : {1, 2, 5}) {
    for (const int64_t chunk_bytes : {1, 64, 4096}) {
      build(folder, source, {.workers = workers, .chunk_bytes = chunk_bytes});
      EXPECT_EQ(read_file(folder / "train.bin"), bin) << workers << " workers, " << chunk_bytes;
      EXPECT_EQ(read_file(folder / "train.idx"), idx);
    }
  }
}

TEST(Tokenize, HoldsOutTheSameDocumentsEachTimeAndLosesNone) {
  const TempFolder folder;
  const TextSource source(
      {.paths = {folder.write("a.txt", numbered_lines(2000))}, .mode = DocumentMode::line});
  const auto result = build(folder, source, {.split = {.fraction = 0.1, .seed = 3}, .chunk_bytes = 100});
  const auto train = texts_of(IndexedDataset(folder / "train"));
  const auto validation = texts_of(IndexedDataset(folder / "validation"));
  EXPECT_EQ(train.size() + validation.size(), 2000U);
  EXPECT_EQ(result.validation.documents, static_cast<int64_t>(validation.size()));
  EXPECT_GT(validation.size(), 140U);  // 200 expected, standard deviation 13
  EXPECT_LT(validation.size(), 260U);
  const ValidationSplit split{.fraction = 0.1, .seed = 3};
  size_t next_train = 0, next_validation = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    const std::string line = format("line number {}$", i);
    EXPECT_EQ(split.holds_out(i) ? validation[next_validation++] : train[next_train++], line);
  }
}

TEST(ValidationSplit, DependsOnSeedAndDocumentOnly) {
  const auto held_out = [](uint64_t seed, double fraction) {
    std::vector<int64_t> documents;
    for (int64_t i = 0; i < 1000; ++i) {
      if (ValidationSplit{.fraction = fraction, .seed = seed}.holds_out(i)) documents.push_back(i);
    }
    return documents;
  };
  EXPECT_EQ(held_out(1, 0.1), held_out(1, 0.1));
  EXPECT_NE(held_out(1, 0.1), held_out(2, 0.1));
  EXPECT_TRUE(held_out(1, 0.0).empty());
  // A larger fraction holds out more of the same.
  const auto few = held_out(1, 0.1), many = held_out(1, 0.3);
  EXPECT_TRUE(std::includes(many.begin(), many.end(), few.begin(), few.end()));
}

TEST(Tokenize, ReportsProgressUpToTheEnd) {
  const TempFolder folder;
  const TextSource source(
      {.paths = {folder.write("a.txt", numbered_lines(100))}, .mode = DocumentMode::line});
  std::vector<TokenizeProgress> seen;
  build(folder, source, {.chunk_bytes = 64},
        [&](const TokenizeProgress& progress) { seen.push_back(progress); });
  ASSERT_GT(seen.size(), 5U);
  EXPECT_EQ(seen.front().bytes_done, 0);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);
  EXPECT_EQ(seen.back().bytes_done, source.total_bytes());
  EXPECT_EQ(seen.back().tokens,
            source.total_bytes());  // each line has one line feed less and one end-of-text token more
}

TEST(Tokenize, ContinuesFromAnyPositionThatItReported) {
  const TempFolder folder;
  folder.write("in/a.txt", numbered_lines(40));
  folder.write("in/b.txt", numbered_lines(30));
  const TextSource source({.paths = {folder / "in"}, .mode = DocumentMode::line});
  const auto tokenizer = make_byte_tokenizer();
  const TokenizeOptions options{.workers = 2, .split = {.fraction = 0.3, .seed = 1}, .chunk_bytes = 64};
  const auto run = [&](const std::string& name, const TokenizePosition& start,
                       const std::function<void(const TokenizePosition&)>& reached) {
    IndexedDatasetWriter train(folder / (name + "-train"), {TokenType::u16});
    IndexedDatasetWriter validation(folder / (name + "-validation"), {TokenType::u16});
    const auto result =
        tokenize(source, PlainText(*tokenizer), options, train, &validation, {}, start, reached);
    train.publish();
    validation.publish();
    return result;
  };
  std::vector<TokenizePosition> positions;
  const auto whole =
      run("whole", {}, [&](const TokenizePosition& position) { positions.push_back(position); });
  ASSERT_GT(positions.size(), 10U);
  const auto all = texts_of(IndexedDataset(folder / "whole-train"));
  for (const TokenizePosition& position : positions) {
    const auto rest = run("rest", position, {});
    EXPECT_EQ(rest.train, whole.train);
    EXPECT_EQ(rest.validation, whole.validation);
    const auto texts = texts_of(IndexedDataset(folder / "rest-train"));
    const auto done = static_cast<std::ptrdiff_t>(position.done.train.documents);
    EXPECT_EQ(texts, (std::vector<std::string>(all.begin() + done, all.end())));
  }
}

TEST(Tokenize, ReportsTheFirstErrorInTheOrderOfTheText) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "{\"text\": \"good line\"}\n";
  const auto path = folder.write("a.jsonl", text + "{\"no\": 1}\n" + text + "\xFF\n");
  const TextSource source({.paths = {path}});
  for (int repeat = 0; repeat < 10; ++repeat) {
    const auto message =
        message_of<FormatError>([&] { build(folder, source, {.workers = 4, .chunk_bytes = 32}); });
    EXPECT_CONTAINS(message, "a.jsonl:51: no field \"text\"");
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "train.idx"));
}

TEST(Tokenize, AFileThatCannotBeOpenedIsNeverLeftOut) {
  const TempFolder folder;
  for (int i = 0; i < 100; ++i) {
    const std::filesystem::path lost = folder.write("in/lost.txt", "text");
    const TextSource source(
        {.paths = {folder.write("in/a.txt", "text"), lost, folder.write("in/z.txt", "text")}});
    std::filesystem::remove(lost);
    EXPECT_CONTAINS(message_of<Error>([&] { build(folder, source, {.workers = 4}); }), "lost.txt") << i;
  }
}

TEST(Tokenize, RefusesASourceOfWhiteSpace) {
  const TempFolder folder;
  const TextSource source({.paths = {folder.write("a.txt", "  \n \n\n")}});
  EXPECT_CONTAINS(message_of<UsageError>([&] { build(folder, source, {}); }), "a.txt contains no document");
}

TEST(Tokenize, AnExceptionOfTheProgressFunctionStopsTheWorkers) {
  const TempFolder folder;
  const TextSource source(
      {.paths = {folder.write("a.txt", numbered_lines(1000))}, .mode = DocumentMode::line});
  const auto stop = [](const TokenizeProgress&) { throw Error("stopped"); };
  EXPECT_EQ(message_of<Error>([&] { build(folder, source, {.workers = 3, .chunk_bytes = 10}, stop); }),
            "stopped");
}

TEST(DatasetDescription, IsReadBackAndCheckedAgainstThePair) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const auto dataset = write_dataset(folder / "pair", {{1, 2}, {3}});
  EXPECT_FALSE(read_description(*dataset));
  write_description(folder / "pair", {.documents = 2, .tokens = 3, .text_bytes = 9}, *tokenizer, "from \xFF");
  const auto description = read_description(*dataset);
  ASSERT_TRUE(description);
  EXPECT_EQ(description->statistics.text_bytes, 9);
  EXPECT_EQ(description->tokenizer_fingerprint, tokenizer->fingerprint());
  write_description(folder / "pair", {.documents = 2, .tokens = 4, .text_bytes = 9}, *tokenizer, "");
  EXPECT_CONTAINS(message_of<FormatError>([&] { read_description(*dataset); }), "do not belong together");
  for (const char* bad : {"[]", "{}", "{\"documents\": -1}", "{\"documents\": 2.5}", "not json",
                          "{\"documents\": 2, \"tokens\": 3, \"text_bytes\": 1e300}",
                          "{\"documents\": 2, \"tokens\": 3, \"text_bytes\": 9}"}) {
    folder.write("pair.json", bad);
    EXPECT_CONTAINS(message_of<FormatError>([&] { read_description(*dataset); }), "pair.json");
  }
}

}  // namespace
}  // namespace stepforge::testing
