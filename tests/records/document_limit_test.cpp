// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/document_limit.h"

#include <gtest/gtest.h>

#include "stepforge/records/records.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

/// "QQ=AA;": a question, "=", and an answer that counts, with a line feed after it that does not.
constexpr const char* kTurnTemplate =
    "{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}={% else %}<|endoftext|>{{ '\\n' }}{% "
    "endif %}"
    "{% endfor %}";

struct Encoded {
  std::string text;  ///< "$" stands for the end-of-text token; what counts is in capitals, "!" after a "$"
  EncodedDocuments documents;
};

Encoded encode(const std::string& record, RecordOptions options) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  options.chat_template = folder.write("template.jinja", kTurnTemplate);
  const auto records = make_record_format(*tokenizer, options);
  Encoded encoded;
  records->encoder()->append(record, encoded.documents);
  const EncodedDocuments& documents = encoded.documents;
  for (size_t i = 0; i < documents.tokens.size(); ++i) {
    const int32_t token = documents.tokens[i];
    const bool counts = documents.counted.empty() || documents.counted[i] != 0;
    if (token == 256) {
      encoded.text += counts ? "$!" : "$";
    } else {
      const char letter = static_cast<char>(token);
      encoded.text +=
          counts && letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
    }
  }
  return encoded;
}

std::string chat(const std::vector<std::string>& contents) {
  Json messages = Json::array();
  for (size_t i = 0; i < contents.size(); ++i)
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", contents[i]}});
  return Json({{"messages", messages}}).dump();
}

RecordOptions rule(TooLong too_long, int64_t tokens, const std::string& loss_on = "assistant") {
  return {.format = "messages", .loss_on = loss_on, .limit = {.rule = too_long, .tokens = tokens}};
}

TEST(ShareLimit, AShortAnswerStaysWhole) {
  EXPECT_EQ(share_limit({.question = 1000, .answer = 4}, 10), (TurnShare{6, 4}));
  EXPECT_EQ(share_limit({.question = 3, .answer = 4}, 10), (TurnShare{3, 4}));
}

TEST(ShareLimit, AShortQuestionStaysWhole) {
  EXPECT_EQ(share_limit({.question = 4, .answer = 1000}, 10), (TurnShare{4, 6}));
  EXPECT_EQ(share_limit({.question = 0, .answer = 1000}, 10), (TurnShare{0, 10}));
}

TEST(ShareLimit, OtherwiseBothShrinkInProportion) {
  EXPECT_EQ(share_limit({.question = 5, .answer = 5}, 10), (TurnShare{5, 5}));
  EXPECT_EQ(share_limit({.question = 60, .answer = 30}, 10), (TurnShare{7, 3}));
  EXPECT_EQ(share_limit({.question = 30, .answer = 60}, 10), (TurnShare{4, 6}));
  EXPECT_EQ(share_limit({.question = 142, .answer = 58}, 100), (TurnShare{71, 29}));
}

TEST(ShareLimit, AnAnswerIsNeverLostAsAWhole) {
  EXPECT_EQ(share_limit({.question = 1000, .answer = 5}, 10), (TurnShare{9, 1}));
}

TEST(DocumentLimit, ShortDocumentsStayAsTheyAre) {
  for (const TooLong too_long : {TooLong::cut, TooLong::drop, TooLong::error, TooLong::proportional}) {
    const Encoded encoded = encode(chat({"ab", "cd"}), rule(too_long, 7));
    EXPECT_EQ(encoded.text, "ab=CD$!\n");
    EXPECT_TRUE(encoded.documents.dropped.empty() && encoded.documents.cut.empty());
  }
}

TEST(DocumentLimit, DropLeavesOutAndCounts) {
  const Encoded encoded = encode(chat({"ab", "cd"}), rule(TooLong::drop, 6));
  EXPECT_TRUE(encoded.documents.ends.empty());
  EXPECT_TRUE(encoded.documents.counted.empty());
  EXPECT_EQ(encoded.documents.dropped,
            (LossesByReason{{kTooLong, {.documents = 1, .tokens = 7, .text_bytes = 19}}}));
}

TEST(DocumentLimit, ErrorNamesTheLengthAndTheRemedy) {
  EXPECT_CONTAINS(message_of<FormatError>([] { encode(chat({"ab", "cd"}), rule(TooLong::error, 6)); }),
                  "the document has 7 tokens, and a row 6: increase seq_len, or set too_long");
}

TEST(DocumentLimit, BothEndsOfATurnAreCut) {
  const Encoded encoded = encode(chat({"abcdefghijk", "mnopqrstuv"}), rule(TooLong::proportional, 12));
  // 12 tokens of question, 12 of answer: 6 of each.
  EXPECT_EQ(encoded.text, "abcdefMNOPQR");
  EXPECT_EQ(encoded.documents.ends, (std::vector<int64_t>{12}));
  EXPECT_EQ(encoded.documents.cut.at(kTooLong).documents, 1);
  EXPECT_EQ(encoded.documents.cut.at(kTooLong).tokens, 12);
}

TEST(DocumentLimit, TurnsTakeTheirSharesOneAfterAnother) {
  const std::string record = chat({"ab", "cd", "efghijkl", "mn", "op", "qr"});
  // The first turn is whole (6 tokens), the second has 14 for 10 that are left.
  EXPECT_EQ(encode(record, rule(TooLong::proportional, 16)).text, "ab=CD$!\nefghijMN$!");
  // With loss_on = "last" the last turn is the first to be kept.
  EXPECT_EQ(encode(record, rule(TooLong::proportional, 16, "last")).text, "\nefghmn$\nop=QR$!\n");
}

TEST(DocumentLimit, ConversationsOfWhichEverythingIsLearnedHaveTheSameTurns) {
  EXPECT_EQ(encode(chat({"abcdefghijk", "mnopqrstuv"}), rule(TooLong::proportional, 12, "all")).text,
            "ABCDEFMNOPQR");
}

TEST(DocumentLimit, APromptAndItsCompletionAreATurn) {
  RecordOptions options = rule(TooLong::proportional, 8);
  options.format = "prompt_completion";
  EXPECT_EQ(encode(R"({"prompt": "abcdefghij", "completion": "xy"})", options).text, "abcdeXY$!");
  options.format = "alpaca";
  EXPECT_EQ(encode(R"({"instruction": "abcdefghij", "output": "xy"})", options).text, "abcdefXY");
}

TEST(DocumentLimit, TextsAreCutAtTheEnd) {
  RecordOptions options = rule(TooLong::proportional, 4);
  options.format = "text";
  const Encoded encoded = encode("abcdefgh", options);
  EXPECT_EQ(encoded.text, "ABCD");
  EXPECT_EQ(encoded.documents.cut.at(kTooLong).tokens, 5);
}

TEST(DocumentLimit, WithoutALabelADocumentIsDropped) {
  // Only the second answer counts, and the first turn leaves no room for it.
  const std::string record = R"({"messages": [{"role": "user", "content": "abcdefgh"},
      {"role": "assistant", "content": "ijklmnop", "loss": false}, {"role": "user", "content": "q"},
      {"role": "assistant", "content": "r"}]})";
  const Encoded encoded = encode(record, rule(TooLong::proportional, 8));
  EXPECT_TRUE(encoded.documents.ends.empty());
  EXPECT_EQ(encoded.documents.dropped.at(kNoLabels).documents, 1);
  // The first token of a document is no label.
  EXPECT_EQ(
      encode(chat({"abc", "de"}), rule(TooLong::proportional, 1)).documents.dropped.at(kNoLabels).documents,
      1);
}

TEST(DocumentLimit, TheDefaultRuleKeepsTheFingerprint) {
  const auto tokenizer = make_byte_tokenizer();
  const auto print = [&](const DocumentLimit& limit) {
    return make_record_format(*tokenizer, {.format = "text", .limit = limit})->fingerprint();
  };
  EXPECT_EQ(print({.rule = TooLong::cut, .tokens = 8}), PlainText(*tokenizer).fingerprint());
  EXPECT_NE(print({.rule = TooLong::drop, .tokens = 8}), print({.rule = TooLong::drop, .tokens = 9}));
  EXPECT_NE(print({.rule = TooLong::drop, .tokens = 8}), print({.rule = TooLong::proportional, .tokens = 8}));
}

TEST(DocumentLimit, TheDescriptionNamesTheRule) {
  const auto tokenizer = make_byte_tokenizer();
  const DocumentLimit limit{.rule = TooLong::proportional, .tokens = 8};
  const Json json = make_record_format(*tokenizer, {.format = "text", .limit = limit})->description();
  EXPECT_EQ(json["too_long"], Json({{"rule", "proportional"}, {"tokens", 8}}));
  EXPECT_EQ(json["filter"], PlainText(*tokenizer).description()["filter"]);
}

TEST(DocumentLimit, ALongLineOfALargeFileIsCut) {
  const std::string question(500'000, 'q');
  RecordOptions options = rule(TooLong::proportional, 100);
  options.format = "alpaca";
  const Encoded encoded = encode(Json({{"instruction", question}, {"output", "a"}}).dump(), options);
  EXPECT_EQ(encoded.documents.tokens.size(), 100U);
  EXPECT_TRUE(encoded.text.ends_with("qA$!\n"));
}

}  // namespace
}  // namespace stepforge::testing
