// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/unicode_forms.h"

#include <chrono>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(UnicodeForms, ComposeAndDecompose) {
  EXPECT_EQ(normal_form("e\u0301", NormalForm::nfc), "\u00E9");
  EXPECT_EQ(normal_form("\u00E9", NormalForm::nfd), "e\u0301");
  EXPECT_EQ(normal_form("\uFB01\u00E9", NormalForm::nfkd), "fie\u0301");
  EXPECT_EQ(normal_form("\uFB01e\u0301", NormalForm::nfkc), "fi\u00E9");
  EXPECT_EQ(normal_form("a\u0301\u0323", NormalForm::nfd), "a\u0323\u0301");  // lower class first
  EXPECT_EQ(normal_form("\u1100\u1161\u11A8", NormalForm::nfc), "\uAC01");
}

// Recorded with tokenizers 0.23.3, whose tables of the forms are those of Unicode 9.
TEST(UnicodeForms, CharactersNewerThanUnicode9StayAsTheyAre) {
  EXPECT_EQ(normal_form("\u32FF", NormalForm::nfkd), "\u32FF");
  EXPECT_EQ(normal_form("a\u0301\u1DF6\u0323", NormalForm::nfc), "\u00E1\u1DF6\u0323");
}

TEST(UnicodeForms, TextThatAFormCannotChangeIsKnown) {
  EXPECT_FALSE(may_change("plain \u00E9t\u00E9 \u4E16\u754C", NormalForm::nfc));
  EXPECT_TRUE(may_change("e\u0301", NormalForm::nfc));
  EXPECT_TRUE(may_change("\u00E9", NormalForm::nfd));
  EXPECT_FALSE(may_change("plain", NormalForm::nfkd));
}

TEST(UnicodeForms, LowerCaseLooksAtEachCharacterAlone) {
  EXPECT_EQ(lower_case("\u00C9A\u03A3"), "\u00E9a\u03C3");
  EXPECT_EQ(lower_case("\u0130"), "i\u0307");
  EXPECT_EQ(lower_case("\U00010D50"), "\U00010D70");  // of Unicode 16
}

TEST(UnicodeForms, ALongRunOfMarksIsOrderedInLinearTime) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "\u0301\u0323";
  const auto began = std::chrono::steady_clock::now();
  const std::string form = normal_form(text, NormalForm::nfd);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  EXPECT_TRUE(form.starts_with("\u0323\u0323"));
  EXPECT_TRUE(form.ends_with("\u0301\u0301"));
}

// Recorded with tokenizers 0.23.3: a Precompiled normalizer looks up whole clusters of less than six bytes.
TEST(UnicodeForms, AReservedControlIsAClusterOfItsOwn) {
  const std::string marks = "\u032D\u0350";
  for (const std::string control : {"\u2065", "\uFFF0", "\U000E0000", "\U000E0FFF"}) {
    const std::string text = "c" + control + marks;
    GraphemeClusters clusters(text);
    EXPECT_EQ(clusters.next(), "c");
    EXPECT_EQ(clusters.next(), control);
    EXPECT_EQ(clusters.next(), marks);
    EXPECT_EQ(clusters.next(), std::nullopt);
  }
}

}  // namespace
}  // namespace stepforge::testing
