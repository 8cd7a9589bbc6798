// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

using Texts = std::vector<std::string>;

TEST(TextFiles, ReadsFoldersRecursivelySortedByPath) {
  const TempFolder folder;
  folder.write("b.txt", "B");
  folder.write("a/z.md", "Z");
  folder.write("a/y.jsonl", "{\"text\": \"Y\"}\n{\"text\": \"Y2\"}");
  folder.write("c.py", "no");
  folder.write(".hidden.txt", "no");
  folder.write(".git/x.txt", "no");
  EXPECT_EQ(texts_of(TextSource({.paths = {folder.path()}})), (Texts{"Y", "Y2", "Z", "B"}));
  EXPECT_EQ(texts_of(TextSource({.paths = {folder.path()}, .format = "text"})), (Texts{"Z", "B"}));
}

std::string open_message(TextSourceOptions options) {
  return message_of<UsageError>([&] { const TextSource source(std::move(options)); });
}

TEST(TextFiles, NamesMissingAndEmptySources) {
  const TempFolder folder;
  EXPECT_CONTAINS(open_message({}), "no text source is given");
  EXPECT_CONTAINS(open_message({.paths = {folder / "none.txt"}}), "none.txt does not exist");
  EXPECT_CONTAINS(open_message({.paths = {folder.write("empty.txt", "")}}), "empty.txt is empty");
  std::filesystem::create_directory(folder / "nothing");
  EXPECT_CONTAINS(open_message({.paths = {folder / "nothing"}}), "nothing contains no *.txt");
  folder.write("code/a.py", "x");
  EXPECT_CONTAINS(open_message({.paths = {folder / "code"}}), "1 file (1 B) is not read: a.py");
}

TEST(TextFiles, CountsTheFilesOfAFolderThatItDoesNotRead) {
  const TempFolder folder;
  folder.write("a.txt", "text");
  EXPECT_EQ(TextSource({.paths = {folder.path()}}).skipped(), "");
  folder.write("b.jsonl.xz", "12345");
  folder.write("deep/c.pdf", "123");
  folder.write(".hidden", "no");
  const std::string skipped = TextSource({.paths = {folder.path()}}).skipped();
  EXPECT_CONTAINS(skipped, "2 files (8 B) are not read: ");
  EXPECT_CONTAINS(skipped, "b.jsonl.xz");
  EXPECT_CONTAINS(skipped, "c.pdf");
}

TEST(TextFiles, RefusesTypesThatMustBeConvertedWithTheCommand) {
  const TempFolder folder;
  const auto refusal = [&](const std::string& name) {
    return open_message({.paths = {folder.write(name, "x")}});
  };
  EXPECT_CONTAINS(refusal("a.jsonl.bz2"), "a.jsonl.bz2 cannot be read as text; unpack it: bunzip2 -k /");
  EXPECT_CONTAINS(refusal("a.txt.XZ"), "unpack it: unxz -k /");
  EXPECT_CONTAINS(refusal("a.parquet.gz"), "a.parquet.gz cannot be read as text; unpack it first");
  EXPECT_CONTAINS(refusal("a.pdf"), "pdftotext /");
  EXPECT_CONTAINS(refusal("a.bin"), "set format = \"bin\"");
}

TEST(TextFiles, RefusesAnythingButRegularFiles) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe.txt").c_str(), 0600), 0);
  EXPECT_CONTAINS(message_of<Error>([&] { const TextSource source({.paths = {folder / "pipe.txt"}}); }),
                  "pipe.txt is not a regular file");
}

TEST(TextFiles, AFileThatCannotBeReadIsNamedWhenTheSourceIsOpened) {
  const TempFolder folder;
  const auto path = folder.write("secret.txt", "x");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read everything";
  EXPECT_CONTAINS(message_of<Error>([&] { const TextSource source({.paths = {path}}); }),
                  "cannot open " + path.string());
}

TEST(TextFiles, FoldersAreSearchedForTables) {
  const TempFolder folder;
  folder.write("a.csv", "text\nA\n");
  folder.write("b.tsv", "id\ttext\n1\tB\n");
  folder.write("c.jsonl", "{\"text\": \"C\"}\n");
  folder.write("d.txt", "D");
  const auto read = [&](const std::string& format) {
    return texts_of(TextSource({.paths = {folder.path()}, .format = format}));
  };
  EXPECT_EQ(read("auto"), (Texts{"A", "B", "C", "D"}));
  EXPECT_EQ(read("csv"), (Texts{"A", "B"}));
  EXPECT_EQ(read("records"), (Texts{"A", "B", "C"}));
  EXPECT_EQ(read("jsonl"), (Texts{"C"}));
  EXPECT_EQ(read("text"), (Texts{"D"}));
}

TEST(TextFiles, ATableIsTextIfTheUserSaysSo) {
  const TempFolder folder;
  const auto path = folder.write("a.csv", "text\nA\n");
  EXPECT_EQ(texts_of(TextSource({.paths = {path}, .format = "text"})), (Texts{"text\nA\n"}));
}

TEST(TextFiles, PathsMayBePatterns) {
  const TempFolder folder;
  folder.write("b/2.txt", "2");
  folder.write("a/1.txt", "1");
  folder.write("a/deep/3.txt", "3");
  EXPECT_EQ(texts_of(TextSource({.paths = {folder / "*/?.txt"}})), (Texts{"1", "2"}));
  EXPECT_EQ(texts_of(TextSource({.paths = {folder / "**/*.txt"}})), (Texts{"1", "3", "2"}));
  EXPECT_CONTAINS(open_message({.paths = {folder / "a/*.md"}}), "nothing matches", (folder / "a").string());
}

TEST(TextFiles, KnowsTheWordsOfTheFormats) {
  EXPECT_EQ(formats_of("csv").size(), 2U);
  EXPECT_CONTAINS(
      message_of<UsageError>([] { formats_of("xml"); }),
      R"("xml" is not a text format; expected "auto", "text", "jsonl", "csv", "mds" or "records")");
  EXPECT_THROW(formats_of(""), UsageError);
}

TEST(TextFiles, OfAFolderOfTheHubAreItsTrainingSplitWithoutCardAndLicence) {
  const TempFolder folder;
  const auto train = folder.write("data/train-00000-of-00001.jsonl", "{}");
  const auto test = folder.write("data/test-00000-of-00001.jsonl", "{}");
  const auto card = folder.write("README.md", "---\nlicense: mit\n---\n");
  folder.write("LICENSE.txt", "MIT");
  const TextFiles found = find_text_files({folder.path()}, "auto");
  ASSERT_EQ(found.files.size(), 1U);
  EXPECT_EQ(found.files[0].path, train);
  EXPECT_CONTAINS(found.skipped, "the split \"train\" of ", "(others: test)", "test-00000-of-00001.jsonl");
  EXPECT_CONTAINS(found.skipped, "cards and licences are not read", "README.md", "LICENSE.txt");
  // A path that is given is read.
  EXPECT_EQ(find_text_files({test, card}, "auto").files.size(), 2U);
  EXPECT_EQ(find_text_files({folder / "data/test*"}, "auto").files.size(), 1U);
  EXPECT_EQ(find_text_files({folder / "*.md"}, "auto").files.size(), 1U);
}

TEST(TextFiles, EachTypeThatIsNotReadHasItsRemedyOnce) {
  const TempFolder folder;
  for (const char* name : {"a.txt", "b.pdf", "c.pdf", "d.zip"}) folder.write(name, "x");
  const std::string skipped = find_text_files({folder.path()}, "auto").skipped;
  EXPECT_CONTAINS(skipped, "pdftotext", "unzip");
  EXPECT_EQ(skipped.find("pdftotext"), skipped.rfind("pdftotext"));
}

}  // namespace
}  // namespace stepforge::testing
