// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/sample.h"

#include <gtest/gtest.h>

#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

constexpr const char* kSampleTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

class SampleTest : public ::testing::Test {
 protected:
  SampleTest() {
    plan_.records.chat_template = folder_.write("template.jinja", kSampleTemplate);
    plan_.packing = Packing::best_fit;
    plan_.seq_len = 100;
  }

  Sample sample(const SourceSpec& spec, int64_t number) const {
    return read_sample(plan_, spec, number, *tokenizer_);
  }
  std::string text(const Sample& found, const ShowOptions& options = {}) const {
    return render_sample(found, *tokenizer_, options);
  }
  SourceSpec chat(const std::string& lines) const {
    return {.path = folder_.write("chat.jsonl", lines).string(), .format = "messages"};
  }

  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
  DataPlan plan_;
};

constexpr const char* kLines =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
    "\n\n"
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})"
    "\n";

TEST_F(SampleTest, ShowsTheRecordTheTextAndTheMask) {
  const Sample found = sample(chat(kLines), 1);
  const std::string shown = text(found);
  EXPECT_CONTAINS(shown, "sample 1 of " + (folder_ / "chat.jsonl").string());
  EXPECT_CONTAINS(shown, "      \"content\": \"hi\"\n");
  EXPECT_CONTAINS(shown, "[user]hi<|endoftext|>\\n\n[assistant]>>yo<|endoftext|><<\\n\n");
  EXPECT_CONTAINS(shown, "--- 25 tokens, 3 learned ---");
  EXPECT_CONTAINS(shown, "     21     121  yes      \"y\"\n");
  EXPECT_CONTAINS(shown, "      0      91  -        \"[\"\n");
  EXPECT_TRUE(found.notes.empty());
  EXPECT_EQ(shown.find('\033'), std::string::npos);
}

TEST_F(SampleTest, ColourTakesThePlaceOfTheMarks) {
  const std::string shown = text(sample(chat(kLines), 1), {.colour = true, .max_tokens = 2});
  EXPECT_CONTAINS(shown, "\033[33my\033[0m\033[36mo\033[0m");
  EXPECT_CONTAINS(shown, "\033[2mh\033[0m");
  EXPECT_CONTAINS(shown, "... 23 more tokens");
  EXPECT_EQ(shown.find(">>"), std::string::npos);
}

TEST_F(SampleTest, SaysWhyItWasCut) {
  plan_.seq_len = 10;
  EXPECT_CONTAINS(text(sample(chat(kLines), 0)),
                  "cut: it has 23 tokens, of which a row takes the first 10\n");
  plan_.packing = Packing::concat;
  EXPECT_TRUE(sample(chat(kLines), 0).notes.empty());
  plan_.packing = Packing::best_fit;
  plan_.records.limit = {.rule = TooLong::proportional, .tokens = 10};
  const Sample cut = sample(chat(kLines), 0);
  EXPECT_CONTAINS(text(cut), "cut: too long; 13 of its 23 tokens do not fit into a row of 10\n");
  EXPECT_EQ(cut.tokens.size(), 10U);
  plan_.records.limit.rule = TooLong::drop;
  const Sample dropped = sample(chat(kLines), 0);
  EXPECT_CONTAINS(text(dropped), "left out: too long; it has 23 tokens, and a row 10\n");
  EXPECT_EQ(dropped.tokens.size(), 23U);  // as it would have been
}

TEST_F(SampleTest, SaysWhichRuleOfTheFilterDropsIt) {
  plan_.records.filter.min_bytes = 1000;
  const Sample found = sample(chat(kLines), 0);
  EXPECT_CONTAINS(text(found), "left out: min_bytes\n");
  EXPECT_TRUE(found.tokens.empty());
}

TEST_F(SampleTest, SaysWhyARecordIsRefused) {
  const std::string shown = text(sample(chat("{\"messages\": [{\"role\": 3}]}\n"), 0));
  EXPECT_CONTAINS(shown, "refused: \"role\" is not a string\n");
  EXPECT_CONTAINS(shown, "\"role\": 3");
}

TEST_F(SampleTest, ShowsPreferencePairs) {
  const SourceSpec spec{
      .path =
          folder_
              .write("pairs.jsonl",
                     R"({"prompt": [{"role": "user", "content": "q"}], "chosen": "good", "rejected": "bad"})")
              .string(),
      .format = "preference"};
  EXPECT_CONTAINS(
      text(sample(spec, 0)),
      "--- prompt ---\nuser: q\n--- chosen ---\nassistant: good\n--- rejected ---\nassistant: bad\n");
  plan_.sources = {spec};
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { open_data(plan_, tokenizer_.get()); }),
      "format \"preference\" holds pairs of answers, which a run with preference.loss learns from");
}

TEST_F(SampleTest, SaysWhetherAnAnswerIsDesirable) {
  const SourceSpec spec{
      .path =
          folder_.write("judged.jsonl", R"({"prompt": "ab", "completion": "c", "label": false})").string(),
      .format = "unpaired_preference"};
  EXPECT_CONTAINS(text(sample(spec, 0)), "the answer is undesirable", "--- 4 tokens, 2 learned ---\nab>>c");
}

TEST_F(SampleTest, ShowsDocumentsOfTextAndOfFinishedDataSets) {
  plan_.records.documents = "line";
  EXPECT_CONTAINS(text(sample({.path = folder_.write("a.txt", "one\ntwo\n").string()}, 1)),
                  "--- record ---\ntwo\n--- 4 tokens, 3 learned ---\nt>>wo<|endoftext|><<\n");
  write_dataset(folder_ / "pair", {{'a', 'b'}, {'c', 'd', 'e'}});
  const std::string shown = text(sample({.path = (folder_ / "pair").string()}, 1));
  EXPECT_CONTAINS(shown, "--- 3 tokens, 2 learned ---\nc>>de<<\n");
  EXPECT_EQ(shown.find("record"), std::string::npos);
}

TEST_F(SampleTest, NamesTheNumberOfSamples) {
  EXPECT_CONTAINS(message_of<UsageError>([&] { sample(chat(kLines), 2); }), "has 2 samples, numbered from 0");
  write_dataset(folder_ / "pair", {{'a', 'b'}});
  EXPECT_CONTAINS(message_of<UsageError>([&] { sample({.path = (folder_ / "pair").string()}, 1); }),
                  "has 1 samples");
  EXPECT_CONTAINS(message_of<UsageError>([&] { sample({.format = "synthetic"}, 0); }), "synthetic");
}

TEST_F(SampleTest, SamplesAfterTheLimitOfAnEntryAreNotUsed) {
  folder_.write("lines.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  const std::string info =
      folder_
          .write("dataset_info.json",
                 R"({"x": {"file_name": "lines.jsonl", "num_samples": 1, "columns": {"prompt": "text"}}})")
          .string();
  EXPECT_TRUE(sample({.path = info, .dataset = "x"}, 0).notes.empty());
  EXPECT_CONTAINS(text(sample({.path = info, .dataset = "x"}, 1)),
                  "not used: the entry of dataset_info.json takes 1");
}

TEST_F(SampleTest, DataCannotSteerTheTerminal) {
  plan_.records.documents = "line";
  const std::string shown = text(sample({.path = folder_
                                                     .write("a.txt",
                                                            "a\033[2Jb\xC2\x9B"
                                                            "c\x7F\n")
                                                     .string()},
                                        0));
  EXPECT_CONTAINS(shown, "a\\x1B[2Jb\\x9Bc\\x7F\n");
  EXPECT_EQ(shown.find('\033'), std::string::npos);
}

TEST(FindSource, GoesByNumberPathNameOrDataSet) {
  const std::vector<SourceSpec> sources = {{.path = "in/a.jsonl"},
                                           {.path = "in/b.jsonl"},
                                           {.path = "c/b.jsonl"},
                                           {.path = "info.json", .dataset = "identity"},
                                           {.path = "d.txt", .name = "books"}};
  EXPECT_EQ(&find_source(sources, "1"), &sources[1]);
  EXPECT_EQ(&find_source(sources, "a.jsonl"), &sources[0]);
  EXPECT_EQ(&find_source(sources, "c/b.jsonl"), &sources[2]);
  EXPECT_EQ(&find_source(sources, "identity"), &sources[3]);
  EXPECT_EQ(&find_source(sources, "books"), &sources[4]);
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_source(sources, "b.jsonl"); }),
                  "more than one has this name");
  EXPECT_CONTAINS(message_of<UsageError>([&] { find_source(sources, "5"); }),
                  "the sources are 0: in/a.jsonl, 1: in/b.jsonl, 2: c/b.jsonl, 3: identity (info.json), 4: "
                  "books (d.txt)");
}

}  // namespace
}  // namespace stepforge::testing
