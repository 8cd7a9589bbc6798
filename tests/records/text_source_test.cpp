// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_source.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "stepforge/base/utf8.h"
#include "stepforge/records/json_lines.h"
#include "tests/records/compressed.h"
#include "tests/records/test_support.h"
#include "tests/support/allocation_meter.h"

namespace stepforge::testing {
namespace {

using Texts = std::vector<std::string>;

TEST(TextSource, ADocumentIsAFileALineOrAParagraph) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", "one\r\ntwo\n \t\n\n\nthree\nfour");
  const auto read = [&](DocumentMode mode) { return texts_of(TextSource({.paths = {path}, .mode = mode})); };
  EXPECT_EQ(read(DocumentMode::file), (Texts{"one\r\ntwo\n \t\n\n\nthree\nfour"}));
  EXPECT_EQ(read(DocumentMode::line), (Texts{"one", "two", "three", "four"}));
  EXPECT_EQ(read(DocumentMode::paragraph), (Texts{"one\r\ntwo", "three\nfour"}));
}

TEST(TextSource, TheSizeOfChunksDoesNotChangeTheDocuments) {
  const bool holds = rc::check("chunks", [] {
    const auto letters = rc::gen::element('a', 'b', ' ', '\n', '\n', '\r');
    const auto text = "x" + *rc::gen::container<std::string>(letters);
    const auto mode = *rc::gen::element(DocumentMode::file, DocumentMode::line, DocumentMode::paragraph);
    const TempFolder folder;
    const TextSource source({.paths = {folder.write("a.txt", text)}, .mode = mode});
    const auto whole = texts_of(source);
    for (const int64_t bytes : {1, 2, 3, 7}) RC_ASSERT(texts_of(source, bytes) == whole);
    // The chunks cover the file without a gap.
    int64_t end = 0;
    const auto chunks = source.chunks(0, 3);
    while (const auto chunk = chunks->next()) {
      RC_ASSERT(chunk->begin == end);
      end = chunk->end;
    }
    RC_ASSERT(end == static_cast<int64_t>(text.size()));
  });
  EXPECT_TRUE(holds);
}

TEST(TextSource, ReadsJsonLinesOfEverySizeUpToTheEndOfTheFile) {
  const TempFolder folder;
  std::string file;
  Texts expected;
  for (int i = 0; i < 200; ++i) {
    expected.push_back(std::string(static_cast<size_t>(i + 1), 'x') + "\n\"é😀");
    file += "{\"id\": 1, \"body\": \"" + std::string(static_cast<size_t>(i + 1), 'x') +
            "\\n\\\"\\u00e9\\ud83d\\ude00\"}\n";
    if (i % 7 == 0) file += "\r\n";
  }
  file.pop_back();
  const TextSource source({.paths = {folder.write("a.jsonl", file)}, .field = "body"});
  EXPECT_EQ(texts_of(source), expected);
  EXPECT_EQ(texts_of(source, 100), expected);
}

TEST(TextSource, ReadsAJsonArrayAsItsElements) {
  const TempFolder folder;
  const auto path = folder.write("a.json", "\n [{\"text\": \"one\"},\n {\"text\": \"two\", \"id\": 2}]\n");
  EXPECT_EQ(texts_of(TextSource({.paths = {path}})), (Texts{"one", "two"}));
  EXPECT_EQ(texts_of(TextSource({.paths = {path}, .field = std::nullopt}), 1),
            (Texts{"{\"text\":\"one\"}", "{\"text\":\"two\",\"id\":2}"}));
  const TextSource bad({.paths = {folder.write("b.json", "[{\"text\": \"one\"}, {\"body\": 1}]")}});
  EXPECT_CONTAINS(message_of<FormatError>([&] { texts_of(bad); }), "b.json: record 2: no field \"text\"");
  const TextSource cut({.paths = {folder.write("c.json", "[{\"text\": \"one\"}, ")}});
  EXPECT_CONTAINS(message_of<FormatError>([&] { texts_of(cut); }), "c.json: record 1: invalid JSON");
}

TEST(TextSource, SkipsBlankDocumentsAndByteOrderMarks) {
  const TempFolder folder;
  const auto jsonl =
      folder.write("a.jsonl", "\xEF\xBB\xBF{\"text\": \" \\n\"}\n{\"text\": \"\"}\n{\"text\": \"x\"}");
  EXPECT_EQ(texts_of(TextSource({.paths = {jsonl}})), (Texts{"x"}));
  const auto text = folder.write("a.txt", "\xEF\xBB\xBFy");
  EXPECT_EQ(texts_of(TextSource({.paths = {text}})), (Texts{"y"}));
}

TEST(TextSource, NamesAFileThatBecomesShorterInsteadOfCrashing) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", std::string(100'000, 'x') + "\n" + std::string(100'000, 'y'));
  for (const auto mode : {DocumentMode::file, DocumentMode::line, DocumentMode::paragraph}) {
    const TextSource source({.paths = {path}, .mode = mode});
    std::filesystem::resize_file(path, 50'000);
    EXPECT_CONTAINS(message_of<Error>([&] { texts_of(source, 1000); }), "a.txt became shorter");
    folder.write("a.txt", std::string(100'000, 'x') + "\n" + std::string(100'000, 'y'));
  }
}

TEST(TextSource, RefusesALineOfAGigabyteWithoutReadingIt) {
  const TempFolder folder;
  for (const std::string name : {"a.txt", "a.jsonl"}) {
    const auto path = folder.write(name, "{\"text\": \"a\"}\n");
    std::filesystem::resize_file(path, int64_t{1} << 30);  // sparse
    const TextSourceOptions options{.paths = {path}, .mode = DocumentMode::line};
    EXPECT_CONTAINS(source_message<FormatError>(options, 4),
                    name + ": line 2 is a document of more than 64.0 MiB");
  }
  const auto book = folder.write("book.txt", "a");
  std::filesystem::resize_file(book, int64_t{5} << 30);
  EXPECT_CONTAINS(source_message<FormatError>({.paths = {book}}),
                  "book.txt: it has more than 4.0 GiB and is one document; set the document to \"line\"");
}

TEST(TextSource, RefusesALongLineOfASmallFileBeforeItTakesMemory) {
  const TempFolder folder;
  const std::string lines = "short\n\nshort\n" + std::string(static_cast<size_t>(kMaxRecordBytes) * 2, 'x');
  for (const std::string name : {"a.txt.gz", "a.jsonl.zst"}) {
    const TextSource source({.paths = {folder.write(name, name == "a.txt.gz" ? gzip(lines) : zstd(lines))},
                             .mode = DocumentMode::line});
    const AllocationMeter meter;
    const auto chunks = source.chunks(0, 1 << 20);
    EXPECT_CONTAINS(message_of<FormatError>([&] {
                      while (chunks->next()) continue;
                    }),
                    name + ": line 4 is a document of more than 64.0 MiB");
    EXPECT_LT(meter.peak(), static_cast<size_t>(kMaxRecordBytes) * 4);
  }
  const std::string book(size_t{257} << 20, 'x');
  EXPECT_CONTAINS(source_message<FormatError>({.paths = {folder.write("book.txt.zst", zstd(book))}}),
                  "book.txt.zst: it has more than 256.0 MiB and is one document");
  const std::string array = "[" + std::string(static_cast<size_t>(kMaxRecordBytes), ' ') + "]";
  EXPECT_CONTAINS(source_message<FormatError>({.paths = {folder.write("a.json.zst", zstd(array))}}),
                  "a.json.zst: it has more than 64.0 MiB", "JSON Lines");
}

TEST(TextSource, NamesTheFirstByteThatIsNotUtf8) {
  const TempFolder folder;
  const auto path = folder.write("latin.txt", "ab\ncd\ncaf\xE9 x\n");
  for (const auto mode : {DocumentMode::file, DocumentMode::line, DocumentMode::paragraph}) {
    EXPECT_CONTAINS(source_message<FormatError>({.paths = {path}, .mode = mode}, 2),
                    "latin.txt: byte 9 is 0xe9");
  }
  const auto jsonl = folder.write("latin.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xFF\"}\n");
  EXPECT_CONTAINS(source_message<FormatError>({.paths = {jsonl}}), "latin.jsonl: byte 24 is 0xff");
}

/// Its NUL bytes are valid UTF-8, so that it would be trained on.
TEST(TextSource, RefusesWideTextWithoutAMark) {
  const auto wide = [](size_t before, size_t after) {
    std::string text;
    for (const char c : std::string("The river was wide.\n")) {
      text += std::string(before, '\0') + c + std::string(after, '\0');
    }
    return text;
  };
  for (const auto& [text, encoding] :
       {std::pair{wide(0, 1), "UTF-16LE"}, std::pair{wide(1, 0), "UTF-16BE"},
        std::pair{wide(0, 3), "UTF-32LE"}, std::pair{wide(3, 0), "UTF-32BE"}}) {
    const TempFolder folder;
    const TextSource source({.paths = {folder.write("a.txt", text)}});
    const std::string message = message_of<FormatError>([&] { texts_of(source); });
    EXPECT_CONTAINS(message, std::string("iconv -f ") + encoding) << encoding;
  }
  const TempFolder folder;
  const std::string few = std::string("a\0b", 3) + std::string(100, 'x');
  EXPECT_EQ(texts_of(TextSource({.paths = {folder.write("a.txt", few)}})), Texts{few}) << "single NULs stay";
}

TEST(TextSource, NamesLineAndKeysIfAJsonLineLacksTheField) {
  const TempFolder folder;
  const auto path = folder.write("a.jsonl", "{\"text\": \"a\"}\n\n{\"title\": \"b\", \"body\": \"c\"}\n");
  for (const int64_t chunk_bytes : {1, 1 << 20}) {
    const auto message = source_message<FormatError>({.paths = {path}}, chunk_bytes);
    EXPECT_CONTAINS(message, "a.jsonl:3: no field \"text\"; it has \"title\", \"body\"");
  }
}

TEST(TextSource, NamesTheFormatOfConversationsThatAreReadAsTexts) {
  const std::vector<std::pair<std::string, std::string>> records = {
      {R"({"messages": [{"role": "user"}]})", "messages"},
      {R"({"conversations": [{"from": "human"}]})", "sharegpt"},
      {R"({"conversations": [{"role": "user"}]})", "messages"},
      {R"({"instruction": "a", "output": "b"})", "alpaca"},
      {R"({"prompt": "a", "completion": "b"})", "prompt_completion"}};
  for (const auto& [record, format_name] : records) {
    const TempFolder folder;
    EXPECT_CONTAINS(source_message<FormatError>({.paths = {folder.write("a.jsonl", record + "\n")}}, 1 << 20),
                    "set format = \"" + format_name + "\" for this source");
  }
}

TEST(TextSource, ReadsWhatPythonWritesForNumbersThatAreNone) {
  const TempFolder folder;
  const std::string lines = "{\"text\": \"NaN\", \"score\": NaN}\n{\"text\": \"b\", \"score\": -Infinity}\n";
  const auto path = folder.write("a.jsonl", lines);
  EXPECT_EQ(texts_of(TextSource({.paths = {path}})), (Texts{"NaN", "b"}));
  EXPECT_EQ(texts_of(TextSource({.paths = {path}, .field = std::nullopt}), 1),
            (Texts{"{\"text\": \"NaN\", \"score\": null}", "{\"text\": \"b\", \"score\": null}"}));
  const auto array = folder.write("b.json", R"([{"text": "c", "score": NaN}])");
  EXPECT_EQ(texts_of(TextSource({.paths = {array}})), (Texts{"c"}));
}

TEST(TextSource, NamesTheTypeOfAJsonLineWithoutText) {
  const TempFolder folder;
  const auto message = [&](const std::string& line) {
    return source_message<FormatError>(
        {.paths = {folder.write("a.jsonl", "{\"text\": \"a\"}\n" + line + "\n")}});
  };
  EXPECT_CONTAINS(message("[1, 2]"), "a.jsonl:2: an array, not an object");
  EXPECT_CONTAINS(message("\"text\""), "a.jsonl:2: a string, not an object");
  EXPECT_CONTAINS(message("{\"text\": 5}"), "a.jsonl:2: field \"text\" is a number, not a string");
  EXPECT_CONTAINS(message("{\"text\": null}"), "field \"text\" is null");
  EXPECT_CONTAINS(message("{\"text\": \"a\""), "a.jsonl:2: invalid JSON");
  EXPECT_CONTAINS(message("{\"text\": \"a\"} {}"), "a.jsonl:2: invalid JSON");
  EXPECT_CONTAINS(message("plain words"), "a.jsonl:2: invalid JSON");
  EXPECT_CONTAINS(message("{}"), "it has no keys");
  EXPECT_CONTAINS(message(std::string(3000, '[')), "a.jsonl:2: invalid JSON");
}

TEST(TextSource, DocumentsOfJsonLinesAreAlwaysUtf8) {
  const TempFolder folder;
  for (const std::string escape : {"\\ud83d", "\\ude00", "\\ud83dx", "\\ud83d\\u0041"}) {
    const TextSource source({.paths = {folder.write("a.jsonl", "{\"text\": \"" + escape + "\"}\n")}});
    Texts documents;
    try {
      documents = texts_of(source);
    } catch (const FormatError& error) {
      EXPECT_CONTAINS(error.what(), "a.jsonl:1: invalid JSON");
    }
    for (const auto& text : documents) EXPECT_EQ(find_invalid_utf8(text), std::string::npos) << escape;
  }
}

TEST(TextSource, ThreadsHashPiecesOfAFileAndEveryByteCounts) {
  const TempFolder folder;
  const auto path = folder.write("large.txt", "begin");
  constexpr int64_t kPiece = int64_t{16} << 20;
  std::filesystem::resize_file(path, 2 * kPiece + 100);
  const auto hashes = [&](int workers) { return TextSource({.paths = {path}}).file_hashes(workers); };
  const auto before = hashes(1);
  EXPECT_EQ(hashes(4), before);
  std::set<std::string> seen = {before.front()};
  for (const int64_t at : {int64_t{0}, kPiece - 1, kPiece, 2 * kPiece, 2 * kPiece + 99}) {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at).put('x');
    EXPECT_TRUE(seen.insert(hashes(2).front()).second) << at;
  }
  // As long as it is one piece, the hash is that of the bytes.
  std::filesystem::resize_file(path, 3);
  EXPECT_EQ(hashes(2).front(), content_hash("xeg"));
}

TEST(TextSource, TheContentKeyDependsOnContentAndModeNotOnNames) {
  const TempFolder folder;
  const auto key = [](TextSourceOptions options) {
    const TextSource source(std::move(options));
    return source.content_key(source.file_hashes(2));
  };
  const auto a = folder.write("a.txt", "text");
  const auto copy = folder.write("copy.txt", "text");
  const auto other = folder.write("other.txt", "texT");
  EXPECT_EQ(key({.paths = {a}}), key({.paths = {copy}}));
  EXPECT_NE(key({.paths = {a}}), key({.paths = {other}}));
  EXPECT_NE(key({.paths = {a}}), key({.paths = {a, copy}}));
  EXPECT_NE(key({.paths = {a}}), key({.paths = {a}, .mode = DocumentMode::line}));
  EXPECT_NE(key({.paths = {a}}), key({.paths = {a}, .field = "body"}));
  EXPECT_NE(key({.paths = {a}}), key({.paths = {a}, .format = "jsonl"}));
  // One array in a .json file, a malformed line in a .jsonl file.
  const std::string array = "[{\"text\": \"a\"}]";
  EXPECT_NE(key({.paths = {folder.write("b.json", array)}}),
            key({.paths = {folder.write("b.jsonl", array)}}));
}

TEST(TextSource, RefusesUnknownModes) {
  EXPECT_CONTAINS(message_of<UsageError>([] { parse_document_mode("page"); }),
                  "\"page\" is not a document mode");
}

}  // namespace
}  // namespace stepforge::testing
