// SPDX-License-Identifier: Apache-2.0
// The data and tokenizer commands, and text that cannot be trained on.
#include <sstream>

#include "stepforge/base/json.h"
#include "stepforge/dataset/indexed_dataset.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

/// The refusal of a training run on a file of this content.
std::string refusal_of_text(const std::string& name, const std::string& text, const Strings& more = {}) {
  const TempFolder folder;
  write_text(folder / name, text);
  return refusal_of(Strings{"train"} + small_run(folder / "run") +
                    Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / name).string())} + more);
}

TEST(BadText, EmptyFileIsNamed) {
  const std::string message = refusal_of_text("empty.txt", "");
  EXPECT_CONTAINS(message, "empty.txt");
}

TEST(BadText, TooFewTokensAreReportedWithTheFile) {
  const std::string message = refusal_of_text("short.txt", "one line\n");
  EXPECT_CONTAINS(message, "short.txt");
  EXPECT_CONTAINS(message, "too few for one row of 32 tokens");
}

TEST(BadText, InvalidUtf8IsReportedWithTheOffset) {
  const std::string good = some_text(20);
  const std::string message = refusal_of_text("latin.txt", good + "caf\xE9 and more\n" + good);
  EXPECT_CONTAINS(message, "latin.txt");
  EXPECT_CONTAINS(message, "UTF-8");
  EXPECT_CONTAINS(message, format("{}", good.size() + 3));
}

TEST(BadText, JsonLineWithoutTheFieldIsReportedWithLineAndField) {
  const std::string message =
      refusal_of_text("tale.jsonl", "{\"text\": \"once upon a time\"}\n{\"txet\": \"there was\"}\n");
  EXPECT_CONTAINS(message, "tale.jsonl");
  EXPECT_TRUE(contains(message, "line 2") || contains(message, "tale.jsonl:2"));
  EXPECT_CONTAINS(message, "\"text\"");
}

TEST(BadText, MissingFileIsReportedWithTheOriginOfTheSetting) {
  const TempFolder folder;
  const std::string message = refusal_of(Strings{"train"} + small_run(folder / "run") +
                                         Strings{"data.sources=[{path=\"nowhere.txt\"}]"});
  EXPECT_CONTAINS(message, "nowhere.txt");
  EXPECT_CONTAINS(message, "command line");
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Vocabulary, LargerThanThatOfTheModelIsRefusedWithBothSizes) {
  const TempFolder folder;
  const std::string message =
      refusal_of(Strings{"train"} + small_run(folder / "run") + Strings{"model.vocab_size=100"});
  EXPECT_CONTAINS(message, "command line: model.vocab_size = 100, but the tokenizer has 257 tokens");
  EXPECT_FALSE(fs::exists(folder / "run" / "checkpoint"));
}

TEST(Tokenizer, IsTrainedAndDecodesWhatItEncodes) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(300));
  const std::string tokenizer = (folder / "tokenizer").string();
  output_of(
      {"tokenizer", "train", (folder / "tale.txt").string(), "--vocab-size", "300", "--output", tokenizer});
  EXPECT_TRUE(fs::exists(folder / "tokenizer" / "tokenizer.json"));

  const std::string text = "Line 7 tells of gulls\nand \xC3\xA9t\xC3\xA9.\n";
  const std::string ids = output_of({"tokenizer", "encode", "--tokenizer", tokenizer}, text);
  EXPECT_EQ(output_of({"tokenizer", "decode", "--tokenizer", tokenizer}, ids), text);

  // JSON lines: a string per line to an array of ids per line, and back.
  const std::string lines = Json(text).dump() + "\n\"\"\n\"Line\"\n";
  const std::string arrays = output_of({"tokenizer", "encode", "--tokenizer", tokenizer, "--jsonl"}, lines);
  std::istringstream rows(arrays);
  std::string row;
  std::getline(rows, row);
  EXPECT_TRUE(Json::parse(row).is_array());
  EXPECT_LT(Json::parse(row).size(), text.size());
  std::getline(rows, row);
  EXPECT_EQ(row, "[]");
  std::istringstream texts(output_of({"tokenizer", "decode", "--tokenizer", tokenizer, "--jsonl"}, arrays));
  std::getline(texts, row);
  EXPECT_EQ(Json::parse(row).get<std::string>(), text);
}

TEST(Tokenizer, MissingFileIsNamed) {
  EXPECT_CONTAINS(refusal_of({"tokenizer", "encode", "--tokenizer", "nowhere"}), "nowhere");
}

TEST(DataBuild, WritesAPairThatTrainingReadsLikeTheText) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(100));
  const std::string text = (folder / "tale.txt").string();
  output_of({"data", "build", "--input", text, "--output-prefix", (folder / "tale").string(), "--documents",
             "line"});
  const fs::path prefix = folder / "tale_text_document";
  const IndexedDataset dataset(prefix);
  EXPECT_EQ(dataset.index().documents(), 100);

  const Strings show = Strings{"data", "show", "--rows", "3"} + small_run(folder / "run");
  const std::string from_pair =
      output_of(show + Strings{format("data.sources=[{{path=\"{}\"}}]", prefix.string())});
  const std::string from_text =
      output_of(show + Strings{format("data.sources=[{{path=\"{}\"}}]", text), "data.document=line"});
  // The table of the sources before the rows names them.
  const auto rows_of = [](const std::string& shown) { return shown.substr(shown.find("rows of")); };
  EXPECT_EQ(rows_of(from_pair), rows_of(from_text));
  EXPECT_CONTAINS(from_text, "epochs/1M rows\n" + text);
  EXPECT_CONTAINS(from_text, "document part");
}

TEST(DataBuild, PrintsAReportOfWhatItDropped) {
  const TempFolder folder;
  write_text(folder / "web.jsonl",
             "{\"text\": \"one gull\"}\n{\"text\": \"one gull\"}\n{\"text\": \"####\"}\nbad\n");
  const Strings build = {"data",
                         "build",
                         "--input",
                         (folder / "web.jsonl").string(),
                         "--output-prefix",
                         (folder / "out/web").string(),
                         "--deduplicate",
                         "--filter",
                         "max_symbols=0.5",
                         "min_words=1"};
  const ProgramResult stopped = run_program(build);
  EXPECT_NE(stopped.exit_code, 0);
  EXPECT_CONTAINS(stopped.err, "web.jsonl:4: invalid JSON");
  const Strings skipping = build + Strings{"--on-bad-record", "skip"};
  const std::string text = output_of(skipping);
  EXPECT_CONTAINS(text, "web_text_document.bin: 1 documents, 9 tokens");
  EXPECT_CONTAINS(text, "dropped", "duplicate", "malformed", "max_symbols", "8 to 15");
  EXPECT_CONTAINS(text, "skipped ", "web.jsonl:4: invalid JSON");
  EXPECT_CONTAINS(output_of(skipping), "already built");
  EXPECT_CONTAINS(refusal_of(skipping + Strings{"--no-append-eod"}), "replace it with --overwrite");
  EXPECT_CONTAINS(output_of(skipping + Strings{"--no-append-eod", "--overwrite"}), "8 tokens");
  EXPECT_CONTAINS(refusal_of(build + Strings{"--filter", "max_words=lots"}), "data.filter.max_words");
  EXPECT_CONTAINS(refusal_of(build + Strings{"--filter", "exclude=(a"}), "filter: exclude");
}

TEST(DataBuild, ReadsADataSetOfDatasetInfo) {
  const TempFolder folder;
  write_text(folder / "a.csv", "n,content\n1,one\n2,two\n3,three\n");
  write_text(folder / "dataset_info.json",
             R"({"tale": {"file_name": "a.csv", "num_samples": 2, "columns": {"prompt": "content"}}})");
  const Strings build = {"data",      "build", "--input",         folder.path().string(),
                         "--dataset", "tale",  "--output-prefix", (folder / "tale").string()};
  EXPECT_CONTAINS(output_of(build), "tale_text_document.bin: 2 documents, 8 tokens");
  EXPECT_CONTAINS(refusal_of(build + Strings{"--json-keys", "n"}), "--dataset", "--json-keys");
  EXPECT_CONTAINS(refusal_of(build + Strings{"--format", "csv"}), "--dataset", "--format");
  EXPECT_CONTAINS(refusal_of(build + Strings{"--input", (folder / "a.csv").string()}), "name one --input");
}

TEST(DataBuild, LeavesOutOrRefusesLongDocuments) {
  const TempFolder folder;
  write_text(folder / "tale.txt", "one\na longer line\ntwo\n");
  const Strings build = {"data",        "build", "--input",         (folder / "tale.txt").string(),
                         "--documents", "line",  "--output-prefix", (folder / "tale").string()};
  EXPECT_CONTAINS(output_of(build + Strings{"--too-long", "drop", "--seq-len", "4"}), "2 documents, 8 tokens",
                  "too long");
  const ProgramResult result =
      run_program(build + Strings{"--overwrite", "--too-long", "error", "--seq-len", "4"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, "tale.txt: the document at byte 4: ");
  EXPECT_CONTAINS(refusal_of(build + Strings{"--too-long", "drop"}), "--seq-len");
  EXPECT_CONTAINS(refusal_of(build + Strings{"--seq-len", "4"}), "--too-long");
}

TEST(DataShow, NotesWhatTheFilterDropped) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(300) + "#!\n");
  const ProgramResult result = run_program(
      {"data", "show", "training.seq_len=32", "data.document=line", "data.filter.max_symbols=0.9",
       "data.deduplicate=true", format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string())});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_CONTAINS(result.err, "tale.txt: dropped, max_symbols: 1 document");
}

TEST(DataShow, WorksWithoutTrainingSteps) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(300));
  const std::string text =
      output_of({"data", "show", "training.seq_len=32",
                 format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                 format("data.cache_dir={}", (folder / "cache").string())});
  EXPECT_TRUE(contains(text, "row 0:"));
  EXPECT_TRUE(contains(refusal_of({"data", "show"}), "data.sources = []: there is no data"));
}

TEST(DataPack, WritesRowsThatTrainingReadsAgain) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(300));
  const Strings run = {"training.seq_len=96", "data.document=line", "training.global_batch_size=8",
                       format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                       format("data.cache_dir={}", (folder / "cache").string())};
  const std::string packed = (folder / "packed").string();
  const Strings pack = Strings{"data", "pack", "--output", packed} + run;
  EXPECT_CONTAINS(refusal_of(pack), "data.packing = \"concat\" with 1 source(s) makes no rows");
  EXPECT_CONTAINS(output_of(pack + Strings{"data.packing=best_fit"}), "rows of 300 pieces of documents");
  const Strings show = Strings{"data", "show", "--rows", "20"} + run;
  const std::string shown =
      output_of(show + Strings{"data.packing=preset", format("data.preset={}", packed), "data.balance=true"});
  EXPECT_EQ(shown, output_of(show + Strings{"data.packing=best_fit", "data.balance=true"}));
  EXPECT_CONTAINS(shown, "attention in the step from row 0, costliest rank above the mean: ");
}

TEST(DataShow, PrintsTokensPositionsAndLabelsOfTheRequestedRows) {
  const TempFolder folder;
  const std::string text = output_of(
      Strings{"data", "show", "--row", "5", "--rows", "2", "--max-tokens", "4"} + small_run(folder / "run"));
  EXPECT_CONTAINS(text, "row 5:");
  EXPECT_CONTAINS(text, "row 6:");
  EXPECT_FALSE(contains(text, "row 7:"));
  EXPECT_CONTAINS(text, "position");
  EXPECT_CONTAINS(text, "label");
}

}  // namespace
}  // namespace stepforge::testing
