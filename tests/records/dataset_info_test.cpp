// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/dataset_info.h"

#include <gtest/gtest.h>

#include "stepforge/dataset/dataset_build.h"
#include "stepforge/dataset/dataset_cache.h"
#include "stepforge/records/records.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAlpaca = R"({"instruction": "Add.", "input": "1 2", "output": "3"})"
                                "\n"
                                R"({"instruction": "Say.", "output": "so"})"
                                "\n";

class DatasetInfo : public ::testing::Test {
 protected:
  DatasetInfo() { folder_.write("data/a.jsonl", kAlpaca); }

  DatasetEntry entry(const std::string& json) const {
    folder_.write("data/dataset_info.json", "{\"x\": " + json + "}");
    return find_dataset(folder_ / "data/dataset_info.json", "x");
  }
  std::string format_fault(const std::string& json) const {
    return message_of<FormatError>([&] { entry(json); });
  }
  std::string usage_fault(const std::string& json) const {
    return message_of<UsageError>([&] { entry(json); });
  }

  TempFolder folder_;
};

TEST_F(DatasetInfo, TheDefaultIsAlpaca) {
  const DatasetEntry found = entry(R"({"file_name": "a.jsonl"})");
  EXPECT_EQ(found.path, folder_ / "data/a.jsonl");
  EXPECT_EQ(found.layout, ChatLayout::alpaca);
  EXPECT_EQ(found.keys, ChatKeys{});
  EXPECT_EQ(found.max_records, 0);
  EXPECT_EQ(find_dataset(folder_ / "data", "x").path, found.path);
}

TEST_F(DatasetInfo, ColumnsAndTagsNameTheParts) {
  const DatasetEntry found = entry(R"({"file_name": "a.jsonl", "formatting": "sharegpt", "num_samples": 7,
      "columns": {"messages": "talk", "tools": "functions"},
      "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}})");
  EXPECT_EQ(found.layout, ChatLayout::sharegpt);
  EXPECT_EQ(found.max_records, 7);
  EXPECT_EQ(found.keys.messages, (std::vector<std::string>{"talk"}));
  EXPECT_EQ(found.keys.tools, "functions");
  EXPECT_EQ(found.keys.system, "");  // a column that is not listed is not read
  EXPECT_EQ(found.keys.role, "role");
  EXPECT_EQ(found.keys.content, "content");
  ASSERT_EQ(found.keys.roles.size(), 5U);
  EXPECT_EQ(found.keys.roles[0], (RoleName{"user", "user"}));
  EXPECT_EQ(found.keys.roles[2], (RoleName{"observation", "tool"}));
}

TEST_F(DatasetInfo, RankingMakesPreferencePairs) {
  const DatasetEntry found = entry(R"({"file_name": "a.jsonl", "ranking": true,
      "columns": {"prompt": "q", "chosen": "good", "rejected": "bad"}})");
  EXPECT_EQ(found.layout, ChatLayout::preference);
  EXPECT_EQ(found.keys.chosen, "good");
}

TEST_F(DatasetInfo, ColumnsWithoutAResponseAreTexts) {
  const DatasetEntry found = entry(R"({"file_name": "a.jsonl", "columns": {"prompt": "content"}})");
  EXPECT_EQ(found.layout, std::nullopt);
  EXPECT_EQ(found.field, "content");
}

TEST_F(DatasetInfo, TextsAreReadFromTables) {
  folder_.write("data/a.csv", "n,content\n1,\"one, two\"\n");
  entry(R"({"file_name": "a.csv", "columns": {"prompt": "content"}})");
  EXPECT_EQ(texts_of(*open_record_files({folder_ / "data"}, {.dataset = "x"}).source),
            (std::vector<std::string>{"one, two"}));
}

TEST_F(DatasetInfo, RefusesRemoteDataWithTheRemedy) {
  for (const char* key : {"hf_hub_url", "ms_hub_url", "script_url", "s3_url", "cloud_file_name"}) {
    const std::string fault = usage_fault(format(R"({{"{}": "somewhere/x"}})", key));
    EXPECT_CONTAINS(fault, format("\"x\" has {} = \"somewhere/x\": only data on this machine are read", key));
    EXPECT_CONTAINS(fault, "name them with \"file_name\"");
  }
}

TEST_F(DatasetInfo, RefusesWhatItDoesNotRead) {
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "colums": {}})"), "unknown key \"colums\"");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "columns": {"promt": "a"}})"),
                  "unknown key \"promt\"");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "tags": {"tag": "a"}})"), "unknown key \"tag\"");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "formatting": "chatml"})"),
                  "expected \"alpaca\", \"sharegpt\" or \"openai\"");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "split": "test"})"), "one part, \"train\"");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "subset": "en"})"), "no such part");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "num_samples": 0})"), "num_samples");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl", "num_samples": 1e30})"), "num_samples");
  EXPECT_CONTAINS(format_fault(R"({"file_name": 3})"), "file_name");
  EXPECT_CONTAINS(format_fault("[]"), "object");
  EXPECT_CONTAINS(usage_fault(R"({"file_name": "a.jsonl", "columns": {"images": "i"}})"),
                  "only text is read");
  entry(R"({"file_name": "a.jsonl", "split": "train"})");
}

TEST_F(DatasetInfo, ATagOfKtoMakesJudgedAnswers) {
  const DatasetEntry found = entry(
      R"({"file_name": "a.jsonl", "formatting": "sharegpt", "columns": {"messages": "turns", "kto_tag": "good"}})");
  EXPECT_EQ(found.layout, ChatLayout::unpaired_preference);
  EXPECT_EQ(found.keys.label, "good");
  EXPECT_EQ(found.keys.messages, (std::vector<std::string>{"turns"}));
  EXPECT_EQ(
      entry(R"({"file_name": "a.jsonl", "formatting": "openai", "columns": {"kto_tag": "good"}})").keys.role,
      "role");
}

TEST_F(DatasetInfo, NamesTheDataSetsThatThereAre) {
  folder_.write("data/dataset_info.json", R"({"one": {}, "two": {}})");
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_dataset(folder_ / "data", "three"); }),
                  R"(has no data set "three"; it has "one", "two")");
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_dataset(folder_ / "none", "x"); }), "does not exist");
}

TEST_F(DatasetInfo, RefusesFilesOutsideOfTheFolder) {
  folder_.write("secret.jsonl", kAlpaca);
  for (const std::string& name : {std::string("../secret.jsonl"), std::string("b/../../secret.jsonl"),
                                  (folder_ / "secret.jsonl").string(), std::string()})
    EXPECT_CONTAINS(format_fault(Json({{"file_name", name}}).dump()), "it must be a path inside the folder");
  fs::create_symlink("../secret.jsonl", folder_ / "data/link.jsonl");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "link.jsonl"})"), "outside of the folder");
  fs::create_directories(folder_ / "data/many");
  fs::create_symlink(folder_ / "secret.jsonl", folder_ / "data/many/link.jsonl");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "many"})"), "outside of the folder");
  // A name that only begins like the folder's lies outside, too.
  folder_.write("data2/b.jsonl", kAlpaca);
  fs::create_symlink("../data2/b.jsonl", folder_ / "data/near.jsonl");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "near.jsonl"})"), "outside of the folder");
  EXPECT_CONTAINS(format_fault(R"({"file_name": "a.jsonl\u0000.txt"})"), "it holds a NUL byte");
}

TEST_F(DatasetInfo, LinksInsideTheFolderAreFollowedAndCyclesRefused) {
  fs::create_symlink("a.jsonl", folder_ / "data/same.jsonl");
  EXPECT_EQ(entry(R"({"file_name": "same.jsonl"})").path, folder_ / "data/same.jsonl");
  fs::create_symlink("cycle2.jsonl", folder_ / "data/cycle1.jsonl");
  fs::create_symlink("cycle1.jsonl", folder_ / "data/cycle2.jsonl");
  EXPECT_CONTAINS(usage_fault(R"({"file_name": "cycle1.jsonl"})"), "cannot be opened");
  fs::create_directories(folder_ / "data/loop");
  fs::create_symlink("../loop", folder_ / "data/loop/again");
  entry(R"({"file_name": "loop"})");  // a link to a folder of the folder is not entered
}

TEST_F(DatasetInfo, RefusesDeepAndEndlessJson) {
  EXPECT_THROW(entry(std::string(100000, '[') + std::string(100000, ']')), FormatError);
  EXPECT_THROW(entry(R"({"file_name": "a.jsonl", "file_name": "b.jsonl"})"), FormatError);
}

/// The tokens, the mask and the key in the cache.
TEST_F(DatasetInfo, AnEntryIsTheSameAsItsFileWithTheFormat) {
  entry(R"({"file_name": "a.jsonl"})");
  const auto tokenizer = make_byte_tokenizer();
  const fs::path chat_template =
      folder_.write("template.jinja", "{% for m in messages %}{{ m.content }}|{% endfor %}");
  const Records named = open_records({folder_ / "data/dataset_info.json"}, *tokenizer,
                                     {.dataset = "x", .chat_template = chat_template});
  const Records direct = open_records({folder_ / "data/a.jsonl"}, *tokenizer,
                                      {.format = "alpaca", .chat_template = chat_template});
  const TokenizeOptions options;
  EXPECT_EQ(DatasetBuild(*named.source, *named.format, options).fingerprint(),
            DatasetBuild(*direct.source, *direct.format, options).fingerprint());
  EXPECT_EQ(message_of<UsageError>([&] {
              open_records({folder_ / "data"}, *tokenizer, {.dataset = "y", .chat_template = chat_template});
            }).empty(),
            false);
}

TEST_F(DatasetInfo, OnlyTheFirstSamplesAreUsed) {
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += format("{{\"text\": \"line {}\"}}\n\n", i);
  folder_.write("data/lines.jsonl", lines);
  entry(R"({"file_name": "lines.jsonl", "num_samples": 321, "columns": {"prompt": "text"}})");
  const auto tokenizer = make_byte_tokenizer();
  const Records records = open_records({folder_ / "data"}, *tokenizer, {.dataset = "x"});
  for (const int64_t chunk_bytes : {100, 1 << 20}) {
    TokenizeOptions options{.workers = 3, .max_records = records.max_records, .chunk_bytes = chunk_bytes};
    const CachedDataset cached = open_cached_dataset(*records.source, *records.format, options,
                                                     folder_ / format("cache{}", chunk_bytes), {});
    EXPECT_EQ(cached.train_statistics.documents, 321);
    const DatasetIndex& index = cached.train->index();
    std::vector<int32_t> last(static_cast<size_t>(index.tokens() - index.document_begin(320)));
    cached.train->read(index.document_begin(320), last);
    EXPECT_EQ(tokenizer->decode(last, true), "line 320");
    TokenizeOptions all = options;
    all.max_records = 0;
    EXPECT_NE(DatasetBuild(*records.source, *records.format, all).fingerprint(),
              DatasetBuild(*records.source, *records.format, options).fingerprint());
  }
}

TEST_F(DatasetInfo, TheFirstSamplesIncludeMalformedOnes) {
  // Records 1 and 3 cannot be read, record 6 could not either but is behind the limit.
  folder_.write("data/lines.jsonl",
                "{\"text\": \"0\"}\n{\n{\"text\": \"2\"}\n{\"text\": 3}\n{\"text\": \"4\"}\n"
                "{\"text\": \"5\"}\n\xFF\n");
  entry(R"({"file_name": "lines.jsonl", "num_samples": 5, "columns": {"prompt": "text"}})");
  const auto tokenizer = make_byte_tokenizer();
  const Records records = open_records({folder_ / "data"}, *tokenizer, {.dataset = "x"});
  for (const int64_t chunk_bytes : {1, 1 << 20}) {
    TokenizeOptions options{.workers = 2,
                            .max_records = records.max_records,
                            .max_bad_records = 2,
                            .chunk_bytes = chunk_bytes,
                            .save_bytes = 1};
    const CachedDataset cached = open_cached_dataset(*records.source, *records.format, options,
                                                     folder_ / format("cache{}", chunk_bytes), {});
    EXPECT_EQ(cached.train_statistics.documents, 3);
    EXPECT_EQ(cached.report.dropped.at(kMalformed).documents, 2);
    options.max_records = 1;
    options.max_bad_records = 0;
    EXPECT_EQ(open_cached_dataset(*records.source, *records.format, options,
                                  folder_ / format("first{}", chunk_bytes), {})
                  .train_statistics.documents,
              1);
    options.max_records = 2;
    EXPECT_CONTAINS(message_of<FormatError>([&] {
                      open_cached_dataset(*records.source, *records.format, options, folder_ / "refused", {});
                    }),
                    "lines.jsonl:2: ");
  }
}

TEST_F(DatasetInfo, OtherKeysMakeAnotherBuild) {
  const auto tokenizer = make_byte_tokenizer();
  const auto format_of = [&](const ChatKeys& keys) {
    return make_record_format(*tokenizer, {.format = "alpaca", .keys = keys});
  };
  ChatKeys keys;
  keys.query = "";
  EXPECT_NE(format_of(keys)->fingerprint(), format_of({})->fingerprint());
  EXPECT_FALSE(format_of({})->description().contains("keys"));
  EXPECT_TRUE(format_of(keys)->description().contains("keys"));
}

}  // namespace
}  // namespace stepforge::testing
