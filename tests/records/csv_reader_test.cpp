// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/csv_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "stepforge/records/decompressor.h"
#include "tests/records/compressed.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

using Texts = std::vector<std::string>;

/// The rows as JSON.
Texts rows_of(const TempFolder& folder, const std::string& bytes, const std::string& name = "a.csv",
              int64_t chunk_bytes = 1 << 20) {
  return texts_of(TextSource({.paths = {folder.write(name, bytes)}, .field = std::nullopt}), chunk_bytes);
}

std::string fault_of(const std::string& bytes) {
  const TempFolder folder;
  return message_of<FormatError>([&] { rows_of(folder, bytes); });
}

TEST(CsvReader, ReadsQuotedFieldsAsRfc4180Says) {
  const TempFolder folder;
  EXPECT_EQ(rows_of(folder,
                    "\xEF\xBB\xBFtext,\"n, m\"\r\n\"one\r\ntwo \"\"three\"\"\",1\r\n\r\n,\"\"\n5\" x,\\\t\n"),
            (Texts{R"({"text":"one\u000d\ntwo \"three\"","n, m":"1"})", R"({"text":"","n, m":""})",
                   R"({"text":"5\" x","n, m":"\\\u0009"})"}));
  EXPECT_EQ(rows_of(folder, "a\tb\n1,2\t\"3\t4\"", "a.tsv"), (Texts{R"({"a":"1,2","b":"3\u00094"})"}));
}

TEST(CsvReader, ReadsWhatWasWritten) {
  const bool holds = rc::check("round trip", [] {
    const auto letters = rc::gen::element('a', '"', ',', '\n', '\r', '\\', ' ');
    const auto texts = *rc::gen::container<Texts>(rc::gen::container<std::string>(letters));
    std::string file = "id,text\n";
    Texts expected;
    for (const std::string& text : texts) {
      file += "7,\"";
      for (const char c : text) file += c == '"' ? std::string("\"\"") : std::string(1, c);
      file += "\"\n";
      if (!is_blank(text)) expected.push_back(text);
    }
    const TempFolder folder;
    const TextSource source({.paths = {folder.write("a.csv", file)}});
    for (const int64_t bytes : {1, 7, 1 << 20}) RC_ASSERT(texts_of(source, bytes) == expected);
  });
  EXPECT_TRUE(holds);
}

TEST(CsvReader, ReadsCompressedTables) {
  const TempFolder folder;
  const std::string table = "text\n\"a\nb\"\nc\n";
  for (const auto& path : {folder.write("a.csv.gz", gzip(table)), folder.write("a.tsv.zst", zstd(table))})
    EXPECT_EQ(texts_of(TextSource({.paths = {path}})), (Texts{"a\nb", "c"}));
}

TEST(CsvReader, ReadsFieldsThatCrossItsBlocks) {
  const TempFolder folder;
  std::string table = "text,n\n";
  Texts expected;
  for (size_t i = 0; i < 2000; ++i) {
    expected.push_back(std::string(i, 'x') + "\"");
    table += "\"" + std::string(i, 'x') + "\"\"\"," + std::to_string(i) + "\r\n";
  }
  const TextSource source({.paths = {folder.write("a.csv", table)}});
  EXPECT_EQ(texts_of(source), expected);
}

TEST(CsvReader, RefusesAHeaderThatCannotNameTheColumns) {
  EXPECT_CONTAINS(fault_of("a,b,a\n"), "a.csv: header: two columns have the name \"a\"");
  EXPECT_CONTAINS(fault_of("a,,b\n1,2,3\n"), "a.csv: header: column 2 has no name");
  EXPECT_CONTAINS(fault_of("a,\"\"\n"), "column 2 has no name");
  EXPECT_CONTAINS(fault_of("\n\r\n"), "a.csv: header: the file is empty");
  EXPECT_CONTAINS(fault_of("a\rb\rc"), "header: a carriage return without a line feed");
  EXPECT_CONTAINS(fault_of("a," + std::string(2 << 20, 'x') + "\n"), "header: more than 1048576 bytes");
  std::string many;
  for (int i = 0; i < 200'000; ++i) many += std::to_string(i) + ",";
  EXPECT_CONTAINS(fault_of(many + "x\n"), "header: names of more than 1048576 bytes");
}

TEST(CsvReader, NamesTheRowThatIsMalformed) {
  EXPECT_CONTAINS(fault_of("a,b\n1,2\n\n1\n"), "a.csv: row 2: 1 fields, but the header has 2");
  EXPECT_CONTAINS(fault_of("a,b\n1,2,3\n"), "a.csv: row 1: 3 fields, but the header has 2");
  EXPECT_CONTAINS(fault_of("a\n\"x\"y\n"), "row 1: text follows a closing quote");
  EXPECT_CONTAINS(fault_of("a\n1\n\"x\n2\n"), "row 2: a quote is not closed before the end of the file");
  EXPECT_CONTAINS(fault_of("a\nx\ry\n"), "row 1: a carriage return without a line feed");
  for (const int64_t chunk_bytes : {1, 1 << 20}) {
    const TempFolder folder;
    const auto path = folder.write("a.csv", "text\nok\ncaf\xE9\n");
    EXPECT_CONTAINS(source_message<FormatError>({.paths = {path}}, chunk_bytes),
                    "a.csv: row 2: it is not valid UTF-8");
    EXPECT_CONTAINS(
        source_message<FormatError>({.paths = {folder.write("b.csv", "title\nx\ny\n")}}, chunk_bytes),
        "b.csv: row 1: no field \"text\"; it has \"title\"");
  }
}

TEST(CsvReader, RowsOfAWrongNumberOfFieldsCanBeSkipped) {
  const TempFolder folder;
  const auto path = folder.write("a.csv", "text,n\none,1\nalone\n\"two\n2\",2\nx,\"3\n\",\"4,\"\nthree,3");
  const Texts expected = {"one", "! a.csv: row 2: 1 fields, but the header has 2", "two\n2",
                          "! a.csv: row 4: 3 fields, but the header has 2", "three"};
  for (const int64_t chunk_bytes : {1, 1 << 20}) {
    EXPECT_EQ(texts_and_faults_of(TextSource({.paths = {path}}), chunk_bytes), expected);
    Texts rows = texts_and_faults_of(TextSource({.paths = {path}, .field = std::nullopt}), chunk_bytes);
    ASSERT_EQ(rows.size(), 5);
    EXPECT_EQ(rows[0], R"({"text":"one","n":"1"})");
    EXPECT_EQ(rows[1], expected[1]);
  }
}

TEST(CsvReader, AnUnclosedQuoteInALargeFileUsesBoundedMemory) {
  const TempFolder folder;
  const auto path = folder.write("a.csv", "text\nfine\n\"and so on");
  std::filesystem::resize_file(path, int64_t{1} << 40);  // sparse
  CsvReader reader(open_bytes(path), ',', "a.csv", 1 << 16);
  std::string bytes(1 << 20, '\0');
  EXPECT_CONTAINS(
      message_of<FormatError>([&] { reader.read(bytes); }),
      "a.csv: row 2: more than 65536 bytes; at most that many are accepted. Is a quote not closed?");
  EXPECT_LT(reader.position(), 1 << 20);
}

TEST(CsvReader, NamesAFileThatBecomesShorter) {
  const TempFolder folder;
  const auto path = folder.write("a.csv", "text\n" + std::string(1 << 20, 'x') + "\n");
  const auto input = open_contents({.path = path, .format = &kCsvFormat}, std::nullopt);
  std::filesystem::resize_file(path, 1000);
  std::string bytes(2 << 20, '\0');
  EXPECT_CONTAINS(message_of<Error>([&] { input->read(bytes); }), "a.csv became shorter");
}

TEST(CsvReader, EqualBytesAreOtherContentWithAnotherSeparator) {
  const TempFolder folder;
  const std::string bytes = "text\nx\n";
  const auto key = [&](const std::string& name, const std::string& format) {
    const TextSource source({.paths = {folder.write(name, bytes)}, .format = format});
    return source.content_key(source.file_hashes(1));
  };
  EXPECT_EQ(key("a.csv", "auto"), key("b.dat", "csv"));
  EXPECT_NE(key("a.csv", "auto"), key("a.tsv", "auto"));
  EXPECT_NE(key("a.csv", "auto"), key("a.csv", "text"));
}

}  // namespace
}  // namespace stepforge::testing
