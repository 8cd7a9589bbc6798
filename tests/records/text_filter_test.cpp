// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_filter.h"

#include <gtest/gtest.h>

#include "stepforge/records/record_format.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

std::string broken_rule(const TextFilterRules& rules, std::string_view text) {
  TextFilter::Scratch scratch;
  return std::string(TextFilter(rules).broken_rule(text, scratch));
}

struct RuleCase {
  const char* name;
  TextFilterRules rules;
  std::string kept;
  std::string dropped;
};

// Each pair of texts lies on the two sides of the limit.
const std::vector<RuleCase> kRuleCases = {
    {"min_bytes", {.min_bytes = 3}, "abc", "ab"},
    {"max_bytes", {.max_bytes = 3}, "abc", "\xC3\xA9t\xC3\xA9"},
    {"min_words", {.min_words = 3}, " one\ntwo\tthree ", "one two"},
    {"max_words", {.max_words = 2}, "one  two", "one two\xE2\x80\x89three"},
    {"max_symbols", {.max_symbols = 0.25}, "abc#", "ab##"},
    {"max_symbols", {.max_symbols = 0.0}, "Na\xC3\xAFve 42 \xD7\xA9\xD6\xB8\xE4\xBD\xA0", "a.b"},
    {"min_mean_word_length", {.min_mean_word_length = 2.5}, "ab abc", "ab abc ab"},
    {"max_mean_word_length", {.max_mean_word_length = 2.0}, "\xC3\xA9\xC3\xA9 ab", "abc ab"},
    {"max_repeated_lines", {.max_repeated_lines = 0.5}, "a\na\n\n\n", "a\na\na\n"},
    {"include", {.include = {"gulls?", "ships"}}, "the gull", "the sea"},
    {"exclude", {.exclude = {"^lorem", "javascript"}}, "a lorem", "one\nlorem"},
    {"exclude", {.exclude = {"(?i)ABC"}}, "ab", "xabcx"},
};

TEST(TextFilter, EachRuleDropsWhatIsBeyondItsLimit) {
  for (const RuleCase& test : kRuleCases) {
    SCOPED_TRACE(test.name);
    EXPECT_EQ(broken_rule(test.rules, test.kept), "");
    EXPECT_EQ(broken_rule(test.rules, test.dropped), test.name);
  }
}

TEST(TextFilter, KeepsEverythingByDefault) {
  for (const char* text : {"", "#", "a\na\na\na", "\n"}) EXPECT_EQ(broken_rule({}, text), "");
  EXPECT_EQ(TextFilter().description(), Json::object());
}

TEST(TextFilter, AnEmptyTextHasNoSymbolsWordsOrLines) {
  EXPECT_EQ(broken_rule({.max_symbols = 0.0, .max_repeated_lines = 0.0}, ""), "");
  EXPECT_EQ(broken_rule({.min_words = 1}, " "), "min_words");
}

TEST(TextFilter, RefusesRulesThatCannotBeMeant) {
  const auto message = [](const TextFilterRules& rules) {
    return message_of<UsageError>([&] { TextFilter{rules}; });
  };
  EXPECT_CONTAINS(message({.include = {"a", "(b"}}), "filter: include: regular expression \"(b\"");
  EXPECT_CONTAINS(message({.exclude = {std::string(5000, 'a')}}), "5000 bytes; at most 4096");
  EXPECT_CONTAINS(message({.exclude = {"\\C"}}), "filter: exclude");
  EXPECT_CONTAINS(message({.min_words = 3, .max_words = 2}), "min_words = 3 is above max_words = 2");
}

TEST(TextFilter, AHostilePatternIsAnErrorAndNotAHang) {
  const std::string text = std::string(60, 'a') + "b";
  for (const char* pattern : {"(a+)+$", "(a|a)*$"}) {
    EXPECT_CONTAINS(message_of<Error>([&] { broken_rule({.exclude = {pattern}}, text + text); }),
                    "filter: exclude: ", "match limit exceeded");
  }
}

TEST(TextFilter, DroppedTextsAreCountedByRuleAndNotEncoded) {
  const auto tokenizer = make_byte_tokenizer();
  const PlainText records(*tokenizer, {}, {.min_bytes = 3, .exclude = {"x"}});
  const auto encoder = records.encoder();
  EncodedDocuments documents;
  for (const char* text : {"a", "abc", "abx", "", "xyz"}) encoder->append(text, documents);
  EXPECT_EQ(documents.text_bytes, (std::vector<int64_t>{3}));
  EXPECT_EQ(documents.dropped, (LossesByReason{{"exclude", {.documents = 2, .text_bytes = 6}},
                                               {"min_bytes", {.documents = 2, .text_bytes = 1}}}));
  EXPECT_NE(records.fingerprint(), PlainText(*tokenizer).fingerprint());
}

}  // namespace
}  // namespace stepforge::testing
