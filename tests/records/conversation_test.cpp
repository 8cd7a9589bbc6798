// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/conversation.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/records/chat_fields.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

Conversation read(const std::string& record, ChatLayout layout, LossOn loss_on = LossOn::assistant) {
  return read_conversation(parse_json(record, "test"), layout, loss_on);
}

/// The message of the FormatError; "" if there is none.
std::string fault(const std::string& record, ChatLayout layout = ChatLayout::messages) {
  try {
    read(record, layout);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kTwoTurns = R"({"messages": [{"role": "system", "content": "s"},
  {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
  {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";

TEST(Conversation, CountsEveryMessageOfTheAssistant) {
  const Conversation found = read(kTwoTurns, ChatLayout::messages);
  EXPECT_EQ(found.messages.size(), 5U);
  EXPECT_EQ(found.counted, (std::vector<bool>{false, false, true, false, true}));
  EXPECT_TRUE(found.tools.is_null());
}

TEST(Conversation, OnRequestOnlyTheLastMessageCounts) {
  EXPECT_EQ(read(kTwoTurns, ChatLayout::messages, LossOn::last).counted,
            (std::vector<bool>{false, false, false, false, true}));
}

TEST(Conversation, AMessageMaySayThatItDoesNotCount) {
  const Conversation found = read(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b", "loss": false}, {"role": "user", "content": "c"},
      {"role": "assistant", "content": "d", "weight": 1}, {"role": "assistant", "content": "e", "weight": 0}]})",
                                  ChatLayout::messages);
  EXPECT_EQ(found.counted, (std::vector<bool>{false, false, false, true, false}));
  EXPECT_FALSE(found.messages[1].contains("loss"));
  EXPECT_FALSE(found.messages[3].contains("weight"));
}

TEST(Conversation, AMaskMeansTheSameInEveryLayout) {
  for (const char* key : {R"("weight": 0)", R"("loss_weight": 0)", R"("loss": false)", R"("train": false)",
                          R"("training": false)", R"("masked": true)"}) {
    const std::string mask(key);
    const std::string messages = R"({"messages": [{"role": "user", "content": "a", "weight": null},
        {"role": "assistant", "content": "b", )" +
                                 mask + R"(}, {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"}]})";
    const std::string turns = R"({"conversations": [{"from": "human", "value": "a"},
        {"from": "gpt", "value": "b", )" +
                              mask + R"(}, {"from": "human", "value": "c"},
        {"from": "gpt", "value": "d"}]})";
    const Conversation from_messages = read(messages, ChatLayout::messages);
    const Conversation from_turns = read(turns, ChatLayout::sharegpt);
    EXPECT_EQ(from_messages.counted, (std::vector<bool>{false, false, false, true})) << key;
    EXPECT_EQ(from_turns.counted, from_messages.counted) << key;
    EXPECT_EQ(from_turns.messages, from_messages.messages) << key;
    EXPECT_EQ(from_turns.excluded, "conversations[1]") << key;
    EXPECT_EQ(from_messages.excluded, "messages[1]") << key;
  }
}

TEST(Conversation, AMaskThatIsNotKnownOrContradictsAnotherIsRefused) {
  const auto turn = [](const std::string& mask) {
    return R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", )" + mask +
           "}]}";
  };
  for (const char* key : {"train_detail", "loss_mask", "Weight", "labels", "is_trained", "learnable"}) {
    EXPECT_CONTAINS(
        fault(turn("\"" + std::string(key) + "\": 1"), ChatLayout::sharegpt),
        "conversations[1]." + std::string(key) + " looks like a mask of the loss and is not known");
  }
  EXPECT_CONTAINS(fault(turn(R"("loss": true, "weight": 0)"), ChatLayout::sharegpt), "contradict each other");
  EXPECT_CONTAINS(fault(turn(R"("train": 1)"), ChatLayout::sharegpt),
                  "conversations[1].train is not true or false");
}

TEST(Conversation, MessagesMayHaveTheirOwnWordsForRolesAndKeys) {
  ChatKeys keys;
  keys.role = "who";
  keys.content = "says";
  keys.roles = {{"U", "user"}, {"A", "assistant"}, {"F", kCallRole}, {"O", "tool"}};
  const Conversation found = read_conversation(
      parse_json(R"({"messages": [{"who": "U", "says": "a"}, {"who": "F", "says": "{\"name\": \"f\"}"},
                     {"who": "O", "says": "o"}, {"who": "A", "says": "b", "weight": 0}, {"who": "A", "says": "c"}]})",
                 "test"),
      ChatLayout::messages, LossOn::assistant, keys);
  EXPECT_EQ(found.messages[0], (Json{{"role", "user"}, {"content", "a"}}));
  EXPECT_EQ(found.messages[1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(found.counted, (std::vector<bool>{false, true, false, false, true}));
}

Json calls_of(const std::string& value) {
  const Json record = {
      {"conversations",
       {{{"from", "human"}, {"value", "a"}}, {{"from", "function_call"}, {"value", value}}}}};
  return read_conversation(record, ChatLayout::sharegpt, LossOn::assistant).messages[1];
}

TEST(Conversation, AFunctionCallOfShareGptIsACall) {
  const Json area =
      Json::parse(R"({"type": "function", "function": {"name": "area", "arguments": {"w": 3}}})");
  const std::string call = R"({"name": "area", "arguments": {"w": 3}})";
  for (const std::string& value :
       {call, " " + call + "\n", std::string(R"({"name": "area", "arguments": "{\"w\": 3}"})"),
        area.dump()}) {
    EXPECT_EQ(calls_of(value)["tool_calls"], Json::array({area})) << value;
  }
  EXPECT_EQ(calls_of("[" + call + ", " + call + "]")["tool_calls"], Json::array({area, area}));
  const Json thought = calls_of("<think>\nw is 3\n</think>\n" + call);
  EXPECT_EQ(thought["content"], "<think>\nw is 3\n</think>");
  EXPECT_EQ(thought["tool_calls"], Json::array({area}));
}

TEST(Conversation, AFunctionCallThatIsNoneIsRefused) {
  for (const char* value :
       {"f", "{}", "[]", "3", R"({"name": "f", "arguments": [1]})", R"({"name": "f", "arguments": "x"})"})
    EXPECT_CONTAINS(message_of<FormatError>([&] { calls_of(value); }),
                    "conversations[1].value is no call of a tool");
}

TEST(Conversation, KeepsToolsAndToolCalls) {
  const Conversation found = read(R"({"dialogs": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
      {"role": "tool", "content": "1"}, {"role": "assistant", "content": "b"}],
      "tools": "[{\"type\": \"function\"}]"})",
                                  ChatLayout::messages);
  EXPECT_EQ(found.tools, Json::parse(R"([{"type": "function"}])"));
  EXPECT_EQ(found.messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
}

TEST(Conversation, ReadsShareGpt) {
  const Conversation found =
      read(R"({"system": "s", "tools": "", "conversations": [{"from": "human", "value": "a"},
      {"from": "function_call", "value": "{\"name\": \"f\"}"}, {"from": "observation", "value": "o"}, {"from": "gpt", "value": "b"}]})",
           ChatLayout::sharegpt);
  EXPECT_EQ(found.messages,
            Json::parse(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
      {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
      {"role": "tool", "content": "o"}, {"role": "assistant", "content": "b"}])"));
  EXPECT_EQ(found.counted, (std::vector<bool>{false, false, true, false, true}));
}

TEST(Conversation, ReadsAlpacaWithInputAndHistory) {
  const Conversation found =
      read(R"({"instruction": "Add.", "input": "1 2", "output": "3", "system": "", "history": [["q", "r"]]})",
           ChatLayout::alpaca);
  EXPECT_EQ(found.messages,
            Json::parse(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"},
      {"role": "user", "content": "Add.\n1 2"}, {"role": "assistant", "content": "3"}])"));
  EXPECT_EQ(found.counted, (std::vector<bool>{false, true, false, true}));
}

TEST(Conversation, ReadsPromptAndCompletionAsTextsOrAsMessages) {
  const Conversation texts = read(R"({"prompt": "a", "completion": "b"})", ChatLayout::prompt_completion);
  EXPECT_EQ(texts.prompt, "a");
  EXPECT_EQ(texts.completion, "b");
  const Conversation lists =
      read(R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"},
      {"role": "user", "content": "y"}], "completion": [{"role": "assistant", "content": "b"}]})",
           ChatLayout::prompt_completion);
  EXPECT_FALSE(lists.prompt);
  EXPECT_EQ(lists.counted, (std::vector<bool>{false, false, false, true}));
}

TEST(Conversation, AnotherNameOfEveryPartIsRead) {
  ChatKeys keys;
  keys.messages = {"talk"};
  keys.system = "persona";
  keys.tools = "functions";
  keys.role = "who";
  keys.content = "what";
  keys.roles = {{"U", "user"}, {"A", "assistant"}, {"S", "system"}};
  const Conversation found = read_conversation(
      parse_json(R"({"talk": [{"who": "U", "what": "a"}, {"who": "A", "what": "b"}], "persona": "s",
                     "functions": [{"name": "f"}], "system": "no", "tools": [1]})",
                 "test"),
      ChatLayout::sharegpt, LossOn::assistant, keys);
  EXPECT_EQ(found.messages,
            Json::parse(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}])"));
  EXPECT_EQ(found.tools, Json::parse(R"([{"name": "f"}])"));
  ChatKeys alpaca;
  alpaca.prompt = "q";
  alpaca.response = "a";
  alpaca.query = "";
  alpaca.history = "before";
  const Conversation asked = read_conversation(
      parse_json(R"({"q": "x", "a": "y", "input": "not read", "before": [["1", "2"]], "system": "s"})",
                 "test"),
      ChatLayout::alpaca, LossOn::last, alpaca);
  EXPECT_EQ(asked.messages,
            Json::parse(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "1"},
      {"role": "assistant", "content": "2"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])"));
}

TEST(Conversation, QuestionsAndAnswersOfShareGptAlternate) {
  const auto turns = [](const std::vector<std::string>& words) {
    Json list = Json::array();
    for (const std::string& word : words) list.push_back({{"from", word}, {"value", "x"}});
    return Json({{"conversations", list}}).dump();
  };
  EXPECT_CONTAINS(fault(turns({"human", "human", "gpt"}), ChatLayout::sharegpt),
                  "conversations[1].from is \"human\", but it is the turn of gpt, assistant, function_call");
  EXPECT_CONTAINS(fault(turns({"gpt", "human"}), ChatLayout::sharegpt),
                  "conversations[0].from is \"gpt\", but it is the turn of human, user, observation, tool");
  EXPECT_CONTAINS(fault(turns({"human", "gpt", "system"}), ChatLayout::sharegpt), "conversations[2].from is");
  EXPECT_CONTAINS(fault(turns({"system", "gpt"}), ChatLayout::sharegpt), "conversations[1].from is");
  EXPECT_EQ(fault(turns({"system", "human", "gpt", "tool", "gpt"}), ChatLayout::sharegpt), "");
}

TEST(Conversation, ASystemMessageAmongTheTurnsTakesThePlaceOfTheColumn) {
  const Conversation found =
      read(R"({"system": "column", "conversations": [{"from": "system", "value": "turn"},
      {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
           ChatLayout::sharegpt);
  EXPECT_EQ(found.messages[0]["content"], "turn");
  EXPECT_EQ(found.messages.size(), 3U);
  EXPECT_EQ(found.counted, (std::vector<bool>{false, false, true}));
}

/// Every key of a layout with a value of every kind.
TEST(Conversation, AWrongTypeAnywhereIsAFault) {
  const std::vector<std::pair<ChatLayout, std::string>> records = {
      {ChatLayout::messages, R"({"messages": [{"role": "assistant", "content": "b"}], "tools": [1]})"},
      {ChatLayout::sharegpt,
       R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s", "tools": "[]"})"},
      {ChatLayout::alpaca,
       R"({"instruction": "a", "input": "b", "output": "c", "system": "s", "history": [["q", "a"]]})"},
      {ChatLayout::prompt_completion, R"({"prompt": "a", "completion": "b"})"}};
  const std::vector<Json> values = {Json(), true, 1, -2.5, Json::array({Json::array()}), Json({{"a", 1}})};
  for (const auto& [layout, text] : records) {
    const Json record = Json::parse(text);
    EXPECT_NO_THROW(read_conversation(record, layout, LossOn::assistant));
    for (const auto& member : record.items()) {
      for (const Json& value : values) {
        Json changed = record;
        changed[member.key()] = value;
        const bool may_be_absent = value.is_null() && member.key() != "messages" &&
                                   member.key() != "conversations" && member.key() != "instruction" &&
                                   member.key() != "output" && member.key() != "prompt" &&
                                   member.key() != "completion";
        const bool is_list_of_tools = member.key() == "tools" && value.is_array();
        if (may_be_absent || is_list_of_tools) continue;
        EXPECT_THROW(read_conversation(changed, layout, LossOn::assistant), FormatError) << changed.dump();
      }
    }
  }
}

TEST(Conversation, AFieldOfTenMegabytesIsNotRepeatedInAMessage) {
  const std::string text(10'000'000, 'x');
  const std::string record = R"({"conversations": [{"from": "human", "value": [")" + text + R"("]}]})";
  EXPECT_EQ(fault(record, ChatLayout::sharegpt), "\"value\" is not a string");
}

TEST(Conversation, PreferenceDataAreNoConversations) {
  EXPECT_CONTAINS(message_of<Error>([] { read(R"({"prompt": "a"})", ChatLayout::preference); }),
                  "answers that are judged are no conversation");
}

TEST(Conversation, EveryLayoutHasItsName) {
  for (const char* name :
       {"messages", "sharegpt", "alpaca", "prompt_completion", "preference", "unpaired_preference"})
    EXPECT_EQ(chat_layout_name(find_chat_layout(name).value()), name);
  EXPECT_EQ(find_chat_layout("chatml"), std::nullopt);
}

TEST(Conversation, NamesWhatIsNotOfTheLayout) {
  EXPECT_CONTAINS(fault("[]"), "the record is not an object");
  EXPECT_CONTAINS(fault(R"({"text": "a", "id": 1})"), R"(no "messages"; it has "text", "id")");
  EXPECT_CONTAINS(fault(R"({"messages": {"role": "user"}})"), "the messages are not a list");
  EXPECT_CONTAINS(fault(R"({"messages": ["a"]})"), "messages[0] is not an object");
  EXPECT_CONTAINS(fault(R"({"messages": [{"content": "a"}]})"), R"(no "role"; it has "content")");
  EXPECT_CONTAINS(fault(R"({"messages": [{"role": "assistant", "content": "a", "loss": 1}]})"),
                  "messages[0].loss is not true or false");
  EXPECT_CONTAINS(fault(R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})"),
                  "messages[0].weight is neither 0 nor 1");
  EXPECT_CONTAINS(fault(R"({"messages": [{"role": "user", "content": "a"}]})"),
                  "no message of the assistant counts in the loss");
  EXPECT_CONTAINS(fault(R"({"conversations": [{"from": "bot", "value": "a"}]})", ChatLayout::sharegpt),
                  R"(conversations[0].from is "bot"; known are human)");
  EXPECT_CONTAINS(fault(R"({"instruction": "a"})", ChatLayout::alpaca),
                  R"(no "output"; it has "instruction")");
  EXPECT_CONTAINS(fault(R"({"instruction": "a", "output": "b", "history": [["q"]]})", ChatLayout::alpaca),
                  "\"history\" is not a list of pairs");
  EXPECT_CONTAINS(fault(R"({"prompt": "a"})", ChatLayout::prompt_completion), R"(no "completion")");
}

}  // namespace
}  // namespace stepforge::testing
