// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/tokenize.h"

#include <algorithm>
#include <atomic>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/dataset/test_support.h"

namespace stepforge::testing {
namespace {

/// Tokenizes with the byte tokenizer into a published pair for training and one for validation.
TokenizeResult build(const TempFolder& folder, const TextSource& source, const TokenizeOptions& options,
                     const TokenizeProgressFunction& progress = {}, const TextEnds& ends = {}) {
  const auto tokenizer = make_byte_tokenizer();
  IndexedDatasetWriter train(folder / "train", {TokenType::u16});
  IndexedDatasetWriter validation(folder / "validation", {TokenType::u16});
  const auto result = tokenize(source, PlainText(*tokenizer, ends), options, {train, &validation}, progress);
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
    const std::string line = format("line number {}", i);
    const bool held_out = split.holds_out(hash128(line));
    EXPECT_EQ(held_out ? validation[next_validation++] : train[next_train++], line + "$");
  }
}

TEST(Tokenize, HoldsOutTheSameDocumentsWhereverTextIsAdded) {
  const TempFolder folder;
  const TokenizeOptions options{.split = {.fraction = 0.2, .seed = 3}};
  const auto held_out = [&](const std::string& text) {
    build(folder, TextSource({.paths = {folder.write("a.txt", text)}, .mode = DocumentMode::line}), options);
    const auto texts = texts_of(IndexedDataset(folder / "validation"));
    return std::set<std::string>(texts.begin(), texts.end());
  };
  const std::string text = numbered_lines(300);
  const auto before = held_out(text);
  EXPECT_GT(before.size(), 30U);
  EXPECT_EQ(held_out(text + text), before) << "equal documents are on one side";
  const auto after = held_out("new first line\n" + text + "and\nthree\nmore\n");
  EXPECT_TRUE(std::includes(after.begin(), after.end(), before.begin(), before.end()));
  for (const std::string& line : after)
    EXPECT_TRUE(before.contains(line) || !line.starts_with("line number")) << line;
}

TEST(ValidationSplit, DependsOnSeedAndTextOnly) {
  const auto held_out = [](uint64_t seed, double fraction) {
    std::vector<int64_t> documents;
    for (int64_t i = 0; i < 1000; ++i) {
      const Hash128 hash = hash128(std::to_string(i));
      if (ValidationSplit{.fraction = fraction, .seed = seed}.holds_out(hash)) documents.push_back(i);
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
        tokenize(source, PlainText(*tokenizer), options, {train, &validation}, {}, start, reached);
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

/// Text that counts how many records are encoded at the same time.
class CountedText : public PlainText {
 public:
  using PlainText::PlainText;
  std::unique_ptr<RecordEncoder> encoder() const override {
    return std::make_unique<Encoder>(PlainText::encoder(), *this);
  }
  int largest() const { return largest_; }

 private:
  class Encoder : public RecordEncoder {
   public:
    Encoder(std::unique_ptr<RecordEncoder> encoder, const CountedText& text)
        : encoder_(std::move(encoder)), text_(text) {}
    void append(std::string_view record, EncodedDocuments& documents) override {
      const int active = ++text_.active_;
      if (active > text_.largest_) text_.largest_ = active;
      encoder_->append(record, documents);
      --text_.active_;
    }

   private:
    std::unique_ptr<RecordEncoder> encoder_;
    const CountedText& text_;
  };
  mutable std::atomic<int> active_ = 0;
  mutable std::atomic<int> largest_ = 0;
};

TEST(Tokenize, LargeDocumentsAreInMemoryOneAtATime) {
  const TempFolder folder;
  constexpr size_t kBytes = 2'200'000;  // two are more than may be in memory
  for (int i = 0; i < 3; ++i) folder.write(format("in/{}.txt", i), std::string(kBytes, 'a'));
  const TextSource source({.paths = {folder / "in"}});
  const auto tokenizer = make_byte_tokenizer();
  const CountedText records(*tokenizer);
  IndexedDatasetWriter train(folder / "train", {TokenType::u16});
  EXPECT_EQ(tokenize(source, records, {.workers = 4}, {train}).train.documents, 3);
  EXPECT_EQ(records.largest(), 1);
}

/// Its encoder throws something that is no fault of a record.
class BrokenText : public PlainText {
 public:
  using PlainText::PlainText;
  std::unique_ptr<RecordEncoder> encoder() const override { return std::make_unique<Encoder>(); }

 private:
  class Encoder : public RecordEncoder {
   public:
    void append(std::string_view record, EncodedDocuments& documents) override {
      documents.tokens.push_back(1);
      if (record == "line number 70") throw Error("out of order");
      documents.ends.push_back(std::ssize(documents.tokens));
      documents.text_bytes.push_back(1);
    }
  };
};

TEST(Tokenize, AWorkerThatFailsEndsTheRunWhateverThePolicy) {
  const TempFolder folder;
  const TextSource source(
      {.paths = {folder.write("a.txt", numbered_lines(100))}, .mode = DocumentMode::line});
  const auto tokenizer = make_byte_tokenizer();
  for (const int64_t skipped : {0, 10}) {
    IndexedDatasetWriter train(folder / "train", {TokenType::u16});
    EXPECT_EQ(message_of<Error>([&] {
                tokenize(source, BrokenText(*tokenizer),
                         {.workers = 3, .max_bad_records = skipped, .chunk_bytes = 64}, {train});
              }),
              "out of order");
  }
}

/// A record that is refused after it was half encoded.
class HalfText : public PlainText {
 public:
  using PlainText::PlainText;
  std::unique_ptr<RecordEncoder> encoder() const override {
    return std::make_unique<Encoder>(PlainText::encoder());
  }

 private:
  class Encoder : public RecordEncoder {
   public:
    explicit Encoder(std::unique_ptr<RecordEncoder> encoder) : encoder_(std::move(encoder)) {}
    void append(std::string_view record, EncodedDocuments& documents) override {
      encoder_->append(record, documents);
      if (record.find('7') != std::string_view::npos) throw FormatError("it has a 7");
    }

   private:
    std::unique_ptr<RecordEncoder> encoder_;
  };
};

TEST(Tokenize, ASkippedRecordLeavesNothingAndLosesNoOther) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const TextSource lines(
      {.paths = {folder.write("a.txt", "1\n7\n\xFF\n3\n27\n4\n")}, .mode = DocumentMode::line});
  for (const int64_t chunk_bytes : {1, 4, 1000}) {
    IndexedDatasetWriter train(folder / "train", {TokenType::u16});
    const TokenizeResult result =
        tokenize(lines, HalfText(*tokenizer),
                 {.workers = 2, .max_bad_records = 3, .chunk_bytes = chunk_bytes}, {train});
    train.publish();
    EXPECT_EQ(texts_of(IndexedDataset(folder / "train")), (std::vector<std::string>{"1$", "3$", "4$"}));
    EXPECT_EQ(result.dropped, (LossesByReason{{kMalformed, {.documents = 3}}}));
    ASSERT_EQ(result.bad_records.size(), 3U);
    EXPECT_CONTAINS(result.bad_records[0], "a.txt: the document at byte 2: it has a 7");
    EXPECT_CONTAINS(result.bad_records[1], "a.txt", "byte 4");
    EXPECT_CONTAINS(result.bad_records[2], "byte 8: it has a 7");
  }
}

TEST(Tokenize, BadJsonLinesAreSkippedAndNamed) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const TextSource source({.paths = {folder.write("a.jsonl",
                                                  "{\"text\": \"a\"}\n[]\n{\"text\": \"b\n{\"text\": "
                                                  "\"\xFF\"}\n{\"text\": 3}\n{\"text\": \"c\"}\n")}});
  IndexedDatasetWriter train(folder / "train", {TokenType::u16});
  const TokenizeResult result =
      tokenize(source, PlainText(*tokenizer), {.max_bad_records = 10, .chunk_bytes = 16}, {train});
  train.publish();
  EXPECT_EQ(texts_of(IndexedDataset(folder / "train")), (std::vector<std::string>{"a$", "c$"}));
  ASSERT_EQ(result.bad_records.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_CONTAINS(result.bad_records[i], format("a.jsonl:{}: ", i + 2));
}

TEST(Tokenize, AJsonArrayThatBreaksOffStopsTheRunWhateverThePolicy) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const TextSource source({.paths = {folder.write("a.json", "[{\"text\": \"a\"}, {\"te")}});
  IndexedDatasetWriter train(folder / "train", {TokenType::u16});
  EXPECT_CONTAINS(message_of<FormatError>(
                      [&] { tokenize(source, PlainText(*tokenizer), {.max_bad_records = 10}, {train}); }),
                  "a.json: record 1: invalid JSON");
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

}  // namespace
}  // namespace stepforge::testing
