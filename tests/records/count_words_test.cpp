// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/count_words.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/staged.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

void count_corpus(const std::vector<std::filesystem::path>& inputs, const std::string& field,
                  WordCounter& counter) {
  count_words(TextSource({.paths = inputs, .field = field}), counter);
}

TEST(CountWords, ReadsTextJsonLinesAndFolders) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "deep/er");
  write_file_atomic(folder / "deep/a.txt", "one");
  write_file_atomic(folder / "deep/er/b.jsonl", "{\"text\": \"two\"}\n\n{\"id\": 1, \"text\": \"three\"}");
  write_file_atomic(folder / "deep/ignored.bin", "\xFF");
  write_file_atomic(folder / "plain", "four");
  WordCounter counter;
  count_corpus({folder / "deep", folder / "plain"}, "text", counter);
  EXPECT_EQ(counter.counts(), (WordCounts{{"one", 1}, {"two", 1}, {"three", 1}, {"four", 1}}));
}

TEST(CountWords, StopsOnceTheWantedBytesAreCounted) {
  const TempFolder folder;
  write_file_atomic(folder / "a.txt", "one");
  write_file_atomic(folder / "b.txt", "two");
  WordCounter counter;
  count_words(TextSource({.paths = {folder.path()}}), counter, 1);
  EXPECT_EQ(counter.counts(), (WordCounts{{"one", 1}}));
}

TEST(CountWords, RefusesAMissingFile) {
  const TempFolder folder;
  WordCounter counter;
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { return count_corpus({folder / "none.txt"}, "text", counter); }),
      "none.txt");
  EXPECT_CONTAINS(message_of<UsageError>([&] { return count_corpus({folder.path()}, "text", counter); }),
                  folder.path().string(), ".txt");
  EXPECT_CONTAINS(message_of<UsageError>([&] { return count_corpus({}, "text", counter); }), "no text");
}

TEST(CountWords, NamesFileAndLineOfABadLine) {
  const TempFolder folder;
  const struct {
    std::string content;
    std::vector<std::string> message;
  } cases[] = {{"{\"text\": \"a\"}\n{\"body\": 1}\n", {"x.jsonl:2", "\"text\""}},
               {"{\"text\": 5}\n", {"x.jsonl:1", "\"text\"", "string"}},
               {"\n\n[1]\n", {"x.jsonl:3", "object"}},
               {"{\"text\": \"a\"\n", {"x.jsonl:1"}},
               {"{\"text\": \"\xFF\"}\n", {"x.jsonl: byte 10", "UTF-8"}}};
  for (const auto& test : cases) {
    write_file_atomic(folder / "x.jsonl", test.content);
    WordCounter counter;
    EXPECT_CONTAINS(
        message_of<FormatError>([&] { return count_corpus({folder / "x.jsonl"}, "text", counter); }),
        (test.message));
  }
  write_file_atomic(folder / "x.txt", "ab\xC3");
  WordCounter counter;
  EXPECT_CONTAINS(message_of<FormatError>([&] { return count_corpus({folder / "x.txt"}, "text", counter); }),
                  "x.txt", "byte 2");
}

}  // namespace
}  // namespace stepforge::testing
