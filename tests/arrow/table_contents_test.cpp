// SPDX-License-Identifier: Apache-2.0
// The rows of golden files (tools/oracle/make_arrow_golden.py), read through the library as the program does.
#include <filesystem>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/records/text_source.h"
#include "tests/arrow/test_support.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(parse_json(text.substr(begin, end - begin), "line"));
    begin = end + 1;
  }
  return lines;
}

/// Structs without their null members, which other rows have.
Json without_absent(const Json& value) {
  if (value.is_array()) {
    Json made = Json::array();
    for (const Json& element : value) made.push_back(without_absent(element));
    return made;
  }
  if (!value.is_object()) return value;
  Json made = Json::object();
  for (const auto& [key, member] : value.items())
    if (!member.is_null()) made[key] = without_absent(member);
  return made;
}

/// Columns keep their nulls, and so do maps.
Json row_of(const Json& expected) {
  Json row = Json::object();
  for (const auto& [name, column] : expected.items())
    row[name] = name == "map" ? column : without_absent(column);
  return row;
}

class GoldenTables : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTables, RowsAreThoseOfPyarrow) {
  const fs::path path = golden(GetParam());
  const auto rows = json_lines(contents_of({.path = path}));
  const auto expected = json_lines(read_file(golden(GetParam() + std::string(".jsonl"))));
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], row_of(expected[i])) << "row " << i + 1;
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTables,
                         ::testing::Values("kinds.parquet", "kinds_plain.parquet", "kinds.arrow",
                                           "kinds.arrows", "snappy.parquet", "gzip.parquet", "brotli.parquet",
                                           "zstd.parquet", "lz4.parquet", "lz4.arrow", "zstd.arrow",
                                           "empty.parquet", "empty.arrow", "empty.arrows"));

TEST(TableContents, TextIsTheSameInPiecesOfAnySize) {
  const std::string whole = contents_of({.path = golden("kinds.parquet")});
  for (const size_t piece : {1UL, 7UL, 4096UL})
    EXPECT_EQ(contents_of({.path = golden("kinds.parquet")}, piece), whole);
}

TEST(TableContents, FloatsKeepThatTheyAreFloats) {
  const std::string text = contents_of({.path = golden("kinds.arrow"), .column = "pair"});
  EXPECT_EQ(text,
            "{\"pair\":[1.0,2.0]}\n{\"pair\":null}\n{\"pair\":[3.0,4.0]}\n{\"pair\":[5.0,null]}\n{\"pair\":["
            "7.0,8.0]}\n");
}

TEST(TableContents, ReadsOneColumnAlone) {
  for (const char* name : {"lz4.arrow", "zstd.parquet", "kinds.arrow", "kinds.arrows", "kinds.parquet"}) {
    const auto rows = json_lines(contents_of({.path = golden(name), .column = "text"}));
    const auto expected = json_lines(read_file(golden(name + std::string(".jsonl"))));
    ASSERT_EQ(rows.size(), 5U) << name;
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(rows[i], (Json{{"text", expected[i]["text"]}})) << name;
  }
}

TEST(TableContents, WithoutTheColumnAllAreReadSoThatTheErrorCanNameThem) {
  for (const char* name : {"lz4.arrow", "zstd.parquet"})
    EXPECT_EQ(contents_of({.path = golden(name), .column = "body"}), contents_of({.path = golden(name)}));
}

TEST(TableContents, RefusesColumnsOfBytesByName) {
  const auto read = [] { contents_of({.path = golden("binary.parquet")}); };
  EXPECT_CONTAINS(
      message_of<FormatError>(read),
      "binary.parquet: column \"image\": column \"bytes\" is of type binary, which has no form in JSON");
  EXPECT_EQ(contents_of({.path = golden("binary.parquet"), .column = "text"}), "{\"text\":\"a\"}\n");
}

TEST(TableContents, TextThatIsNotUtf8IsRefusedWithRowAndColumn) {
  for (const char* name : {"not_utf8.parquet", "not_utf8.arrow"}) {
    const auto read = [&] { contents_of({.path = golden(name)}); };
    EXPECT_CONTAINS(message_of<FormatError>(read), format("{}: row 4: column \"text\": ", name), "UTF8");
  }
  EXPECT_EQ(json_lines(contents_of({.path = golden("not_utf8.arrow"), .column = "n"})).size(), 5U);
}

TEST(TableContents, ProgressEndsAtTheSizeOfTheFile) {
  for (const char* name : {"lz4.arrow", "zstd.parquet", "kinds.arrow"}) {
    const auto reader = open_arrow({.path = golden(name), .column = "text"});
    std::string text(1, ' ');
    reader->read(text);
    EXPECT_GT(reader->position(), 0);
    EXPECT_LE(reader->position(), file_bytes(golden(name)));
    text.resize(1 << 20);
    reader->read(text);
    EXPECT_EQ(reader->position(), file_bytes(golden(name)));
  }
}

std::vector<std::string> documents_of(const TextSource& source, int64_t chunk_bytes) {
  std::vector<std::string> documents;
  for (size_t file = 0; file < source.files().size(); ++file) {
    const auto chunks = source.chunks(file, chunk_bytes);
    while (const auto chunk = chunks->next())
      source.read(*chunk, [&](std::string_view text) { documents.emplace_back(text); });
  }
  return documents;
}

TEST(TablesAsText, DocumentsAreTheTextsOfTheRows) {
  const TextSource source({.paths = {golden("zstd.parquet"), golden("lz4.arrow"), golden("empty.arrow")}});
  const auto documents = documents_of(source, 100);
  ASSERT_EQ(documents.size(), 10U);
  EXPECT_TRUE(documents[4].starts_with("row 4, again and again"));
  EXPECT_EQ(documents[9], documents[4]);
}

TEST(TablesAsText, AWrongFieldIsNamedWithItsRowAndTheColumnsThereAre) {
  const TextSource source({.paths = {golden("zstd.parquet")}, .field = "body"});
  EXPECT_CONTAINS(message_of<FormatError>([&] { documents_of(source, 100); }),
                  "zstd.parquet: row 1: no field \"body\"; it has \"text\", \"n\"");
  const TextSource numbers({.paths = {golden("zstd.parquet")}, .field = "n"});
  EXPECT_CONTAINS(message_of<FormatError>([&] { documents_of(numbers, 100); }),
                  "zstd.parquet: row 1: field \"n\" is a number, not a string");
}

TEST(TablesAsText, AFolderOfTheCacheIsReadWithoutItsCopies) {
  const TempFolder folder;
  folder.write("dataset_info.json", "{}");
  for (const char* name : {"news-train.arrow", "news-test.arrow", "cache-0123456789abcdef.arrow"})
    fs::copy_file(golden("lz4.arrow"), folder / name);
  const TextSource source({.paths = {folder.path()}});
  EXPECT_EQ(documents_of(source, 1000).size(), 5U);
  EXPECT_CONTAINS(source.skipped(), "the split \"train\" of /", "2 files (2.5 KiB) are not read");
}

}  // namespace
}  // namespace stepforge::testing
