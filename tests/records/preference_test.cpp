// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/preference.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

PreferencePair read(const std::string& record, const ChatKeys& keys = {}) {
  return read_preference(parse_json(record, "test"), keys);
}

std::string fault(const std::string& record) {
  return message_of<FormatError>([&] { read(record); });
}

Json answer(const std::string& text) {
  return Json::array({{{"role", "assistant"}, {"content", text}}});
}

TEST(Preference, ReadsTextsWithoutATemplate) {
  const PreferencePair pair = read(R"({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."})");
  EXPECT_EQ(pair.prompt, "The sky is");
  EXPECT_EQ(pair.chosen, " blue.");
  EXPECT_EQ(pair.rejected, " green.");
}

TEST(Preference, ReadsMessagesAndSingleMessages) {
  const Json prompt = Json::parse(R"([{"role": "user", "content": "a"}])");
  for (const char* record :
       {R"({"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}],
            "rejected": [{"role": "assistant", "content": "c"}]})",
        R"({"messages": [{"role": "user", "content": "a"}], "chosen": {"role": "assistant", "content": "b"},
            "rejected": "c"})",
        R"({"conversations": [{"from": "human", "value": "a"}], "chosen": {"from": "gpt", "value": "b"},
            "rejected": {"from": "gpt", "value": "c"}})",
        R"({"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}],
            "rejected": [{"role": "assistant", "content": "c"}]})"}) {
    const PreferencePair pair = read(record);
    EXPECT_EQ(pair.prompt, prompt) << record;
    EXPECT_EQ(pair.chosen, answer("b")) << record;
    EXPECT_EQ(pair.rejected, answer("c")) << record;
  }
}

TEST(Preference, ReadsAlpacaAsLlamaFactoryDoes) {
  const PreferencePair pair = read(
      R"({"instruction": "Add.", "input": "1 2", "chosen": "3", "rejected": "4", "tools": [{"name": "f"}]})");
  EXPECT_EQ(pair.prompt, Json::parse(R"([{"role": "user", "content": "Add.\n1 2"}])"));
  EXPECT_EQ(pair.chosen, answer("3"));
  EXPECT_EQ(pair.tools, Json::parse(R"([{"name": "f"}])"));
}

TEST(Preference, ThePromptIsTheCommonBeginning) {
  const PreferencePair lists =
      read(R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
      "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]})");
  EXPECT_EQ(lists.prompt, Json::parse(R"([{"role": "user", "content": "a"}])"));
  EXPECT_EQ(lists.chosen, answer("b"));
  EXPECT_EQ(lists.rejected, answer("c"));
  const PreferencePair talk = read(
      R"({"chosen": "\n\nHuman: a\n\nAssistant: The b", "rejected": "\n\nHuman: a\n\nAssistant: The c"})");
  EXPECT_EQ(talk.prompt, "\n\nHuman: a\n\nAssistant:");
  EXPECT_EQ(talk.chosen, " The b");
  EXPECT_EQ(talk.rejected, " The c");
  EXPECT_EQ(read(R"({"chosen": "one two", "rejected": "one twin"})").prompt, "one ");
}

/// As UltraFeedback has it: the prompt as a text, and again at the beginning of both conversations.
TEST(Preference, ATextBesideWholeConversationsIsNotTheirPrompt) {
  const PreferencePair pair = read(
      R"({"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
          "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(pair.prompt, Json::parse(R"([{"role": "user", "content": "q"}])"));
  EXPECT_EQ(pair.chosen, Json::parse(R"([{"role": "assistant", "content": "a"}])"));
  EXPECT_EQ(pair.rejected, Json::parse(R"([{"role": "assistant", "content": "b"}])"));
}

TEST(Preference, TheNamesOfTheKeysMayDiffer) {
  ChatKeys keys;
  keys.prompt = "q";
  keys.chosen = "good";
  keys.rejected = "bad";
  const PreferencePair pair = read(R"({"q": "a", "good": "b", "bad": "c"})", keys);
  EXPECT_EQ(pair.prompt, Json::parse(R"([{"role": "user", "content": "a"}])"));
  EXPECT_EQ(pair.rejected, answer("c"));
}

TEST(Preference, NamesTheFault) {
  EXPECT_CONTAINS(fault("3"), "the record is not an object");
  EXPECT_CONTAINS(fault(R"({"prompt": "a", "chosen": "b"})"), R"(no "rejected"; it has "prompt", "chosen")");
  EXPECT_CONTAINS(fault(R"({"prompt": 1, "chosen": "b", "rejected": "c"})"),
                  "\"prompt\" is neither a text nor messages");
  EXPECT_CONTAINS(fault(R"({"prompt": "a", "chosen": "b", "rejected": 3})"), "\"rejected\" is not a string");
  EXPECT_CONTAINS(fault(R"({"messages": [1], "chosen": "b", "rejected": "c"})"), "[0] is not an object");
  EXPECT_CONTAINS(fault(R"({"messages": [], "chosen": [], "rejected": "c"})"),
                  "\"chosen\" does not end with a message of the assistant");
  EXPECT_CONTAINS(fault(R"({"messages": [], "chosen": {"role": "user", "content": "x"}, "rejected": "c"})"),
                  "\"chosen\" does not end with a message of the assistant");
  EXPECT_CONTAINS(fault(R"({"messages": [], "chosen": {"from": "human", "value": "x"}, "rejected": "c"})"),
                  "it is the turn of gpt");
  EXPECT_CONTAINS(fault(R"({"chosen": "b", "rejected": ["c"]})"), "neither two texts nor two lists");
  EXPECT_CONTAINS(fault(R"({"chosen": "ab", "rejected": "ac"})"), "do not begin alike");
  EXPECT_CONTAINS(fault(R"({"chosen": "a b", "rejected": "a b"})"), "do not differ");
}

JudgedAnswer judged(const std::string& record, const ChatKeys& keys = {}) {
  return read_judged_answer(parse_json(record, "test"), keys);
}

TEST(JudgedAnswer, IsTextsWithoutATemplate) {
  const JudgedAnswer found = judged(R"({"prompt": "The sky is", "completion": " green.", "label": false})");
  EXPECT_EQ(found.conversation.prompt, "The sky is");
  EXPECT_EQ(found.conversation.completion, " green.");
  EXPECT_FALSE(found.desirable);
  EXPECT_TRUE(judged(R"({"prompt": "a", "completion": "b", "label": true})").desirable);
  EXPECT_TRUE(judged(R"({"prompt": "a", "completion": "b", "label": 1})").desirable);
}

/// Records of TRL and of LLaMA-Factory's layouts.
TEST(JudgedAnswer, IsTheLastMessage) {
  ChatKeys turns;
  turns.role = "role";
  turns.content = "content";
  const auto expect = [](const JudgedAnswer& found) {
    ASSERT_EQ(found.conversation.messages.size(), 2U);
    EXPECT_EQ(found.conversation.messages[1]["content"], "b");
    EXPECT_EQ(found.conversation.counted, (std::vector<bool>{false, true}));
    EXPECT_TRUE(found.desirable);
  };
  expect(judged(R"({"prompt": [{"role": "user", "content": "a"}],
                    "completion": [{"role": "assistant", "content": "b"}], "label": true})"));
  expect(judged(R"({"instruction": "a", "input": "", "output": "b", "kto_tag": true})"));
  expect(judged(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "label": true})"));
  const char* const messages =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": true})";
  expect(judged(messages));
  expect(judged(messages, turns));
}

TEST(JudgedAnswer, TheColumnOfTheSystemMessageComesFirst) {
  const auto first = [](const std::string& messages) {
    return judged(R"({"system": "s", "label": true, "messages": [)" + messages + "]}").conversation;
  };
  const std::string turns = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})";
  const Conversation found = first(turns);
  EXPECT_EQ(found.messages.at(0), (Json{{"role", "system"}, {"content", "s"}}));
  EXPECT_EQ(found.counted, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(first(R"({"role": "system", "content": "own"}, )" + turns).messages.at(0)["content"], "own");
}

TEST(JudgedAnswer, OnlyTheLastAnswerCounts) {
  const JudgedAnswer found =
      judged(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "label": true})");
  EXPECT_EQ(found.conversation.counted, (std::vector<bool>{false, false, false, true}));
}

TEST(JudgedAnswer, NamesWhatIsMissing) {
  const auto fault_of = [](const std::string& record) {
    return message_of<FormatError>([&] { judged(record); });
  };
  EXPECT_CONTAINS(fault_of(R"({"prompt": "a", "completion": "b"})"), "no \"label\"");
  EXPECT_CONTAINS(fault_of(R"({"prompt": "a", "completion": "b", "label": "good"})"),
                  "neither true nor false");
  EXPECT_CONTAINS(fault_of(R"({"prompt": "a", "label": true})"), "no \"completion\"");
  EXPECT_CONTAINS(
      fault_of(R"({"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
                  "label": true})"),
      "does not end with a message of the assistant");
  EXPECT_CONTAINS(fault_of("[]"), "the record is not an object");
}

}  // namespace
}  // namespace stepforge::testing
