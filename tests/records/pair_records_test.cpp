// SPDX-License-Identifier: Apache-2.0
// Pairs of answers as documents (records/chat_records.h).
#include <gtest/gtest.h>

#include "stepforge/records/records.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

/// "QQ=AA$" and a line feed that does not count.
constexpr const char* kPairTemplate =
    "{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}={% else %}<|endoftext|>{{ '\\n' }}{% endif %}"
    "{% endfor %}";

struct EncodedPair {
  std::string text;     ///< "$" stands for the end-of-text token
  std::string counted;  ///< "1" or "0" for each token
  EncodedDocuments documents;
};

EncodedPair encode(const std::string& record, RecordOptions options = {}) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  options.pairs = !options.unpaired;
  options.format = options.pairs ? "preference" : "unpaired_preference";
  options.chat_template = folder.write("template.jinja", kPairTemplate);
  const auto records = make_record_format(*tokenizer, options);
  EncodedPair encoded;
  records->encoder()->append(record, encoded.documents);
  for (const int32_t token : encoded.documents.tokens)
    encoded.text += token == 256 ? '$' : static_cast<char>(token);
  for (const uint8_t counts : encoded.documents.counted) encoded.counted += counts != 0 ? '1' : '0';
  return encoded;
}

TEST(PairRecords, AreOneDocumentOfBothAnswersWithTheirPrompt) {
  const EncodedPair messages =
      encode(R"({"prompt": [{"role": "user", "content": "ab"}], "chosen": "cd", "rejected": "e"})");
  EXPECT_EQ(messages.text, "ab=cd$ab=e$") << "nothing follows an answer";
  EXPECT_EQ(messages.counted, "00011100011");
  EXPECT_EQ(messages.documents.ends, (std::vector<int64_t>{11}));
  const EncodedPair texts = encode(R"({"prompt": "a", "chosen": "bc", "rejected": "d"})");
  EXPECT_EQ(texts.text, "abc$ad$");
  EXPECT_EQ(texts.counted, "0111011");
}

TEST(PairRecords, AllMessagesOfAnAnswerCount) {
  const EncodedPair found = encode(
      R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                     {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}],
          "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]})");
  EXPECT_EQ(found.text, "q=a$\nr=b$q=c$");
  EXPECT_EQ(found.counted, "0011111110011") << "from the first token to the last, as in TRL";
}

TEST(PairRecords, AreDroppedAsAWhole) {
  const std::string record = R"({"prompt": "a", "chosen": "b", "rejected": "cccccccc"})";
  EXPECT_TRUE(encode(record, {.filter = {.max_bytes = 4}}).documents.tokens.empty());
  const EncodedPair longer = encode(record, {.limit = {.rule = TooLong::cut, .tokens = 8}});
  EXPECT_TRUE(longer.documents.ends.empty()) << "a part of a pair is none";
  EXPECT_EQ(longer.documents.dropped.at(kTooLong).documents, 1);
}

TEST(PairRecords, NeedAPromptAndTwoAnswers) {
  EXPECT_CONTAINS(
      message_of<FormatError>([] { encode(R"({"prompt": "", "chosen": "a", "rejected": "b"})"); }),
      "no token of a prompt is before \"chosen\"");
  EXPECT_CONTAINS(message_of<FormatError>([] { encode(R"({"prompt": "a", "chosen": "b"})"); }), "rejected");
}

/// The first token, which nothing predicts, says that an answer is undesirable.
TEST(PairRecords, AJudgedAnswerIsOneDocument) {
  const EncodedPair good = encode(R"({"prompt": [{"role": "user", "content": "ab"}],
                 "completion": [{"role": "assistant", "content": "cd"}], "label": true})",
                                  {.unpaired = true});
  EXPECT_EQ(good.text, "ab=cd$") << "nothing follows an answer";
  EXPECT_EQ(good.counted, "000111");
  EXPECT_EQ(good.documents.ends, (std::vector<int64_t>{6}));
  const EncodedPair bad =
      encode(R"({"prompt": "ab", "completion": "cd", "label": false})", {.unpaired = true});
  EXPECT_EQ(bad.text, "abcd$");
  EXPECT_EQ(bad.counted, "10111");
  const EncodedPair longer = encode(R"({"prompt": "ab", "completion": "cd", "label": false})",
                                    {.unpaired = true, .limit = {.rule = TooLong::cut, .tokens = 4}});
  EXPECT_TRUE(longer.documents.ends.empty()) << "answers are judged as a whole";
}

TEST(PairRecords, AreForRunsOnPairsOnly) {
  const auto tokenizer = make_byte_tokenizer();
  const auto fault = [&](const RecordOptions& options) {
    return message_of<UsageError>([&] { make_record_format(*tokenizer, options); });
  };
  EXPECT_CONTAINS(fault({.format = "preference"}), "preference.loss");
  EXPECT_CONTAINS(fault({.format = "messages", .pairs = true}), "these are single texts");
  EXPECT_CONTAINS(fault({.format = "records", .pairs = true}), "these are single texts");
  EXPECT_CONTAINS(fault({.format = "preference", .loss_on = "last", .pairs = true}), "loss_on = \"last\"");
  EXPECT_CONTAINS(fault({.format = "unpaired_preference", .pairs = true}), "kto");
  EXPECT_CONTAINS(fault({.format = "unpaired_preference"}), "kto");
  EXPECT_CONTAINS(fault({.format = "preference", .unpaired = true}), "these are pairs of answers");
  EXPECT_CONTAINS(fault({.format = "messages", .unpaired = true}), "these are texts without a label");
  EXPECT_CONTAINS(
      fault({.format = "preference", .pairs = true, .limit = {.rule = TooLong::proportional, .tokens = 8}}),
      "answers are judged as a whole");
}

}  // namespace
}  // namespace stepforge::testing
