// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/chat_mask.h"

#include <gtest/gtest.h>

#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

/// Messages as "[role]content<|endoftext|>" and a line feed.
constexpr const char* kPlain =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
/// The same with a block that also takes the line feed.
constexpr const char* kBlocks =
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|endoftext|>{{ '\\n' }}{% endgeneration %}"
    "{% else %}{{ m.content }}<|endoftext|>{{ '\\n' }}{% endif %}{% endfor %}";
/// Removes what stands before "|" in all messages but the last.
constexpr const char* kForgetful =
    "{% for m in messages %}[{{ m.role }}]"
    "{{ m.content if loop.last else m.content.split('|')[-1] }}<|endoftext|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

Conversation conversation(const std::vector<std::string>& contents) {
  Conversation made;
  for (size_t i = 0; i < contents.size(); ++i) {
    made.messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", contents[i]}});
    made.counted.push_back(i % 2 == 1);
  }
  return made;
}

/// The text of the tokens that count; "$" stands for the end-of-text token.
std::string counted_text(const char* source, const Conversation& chat) {
  const auto tokenizer = make_byte_tokenizer();
  const ChatTemplate chat_template = ChatTemplate::from_source(source, "test");
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counted;
  encode_with_mask(render_for_loss(chat_template, chat), *tokenizer, *tokenizer->encoder(), tokens, counted);
  EXPECT_EQ(tokens, tokenizer->encode(chat_template.render(chat.messages, {.tools = chat.tools}).text));
  EXPECT_EQ(tokens.size(), counted.size());
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (counted[i] != 0) text += tokens[i] == 256 ? '$' : static_cast<char>(tokens[i]);
  return text;
}

TEST(ChatMask, CountsAnswersWithTheTokenThatEndsThem) {
  EXPECT_EQ(counted_text(kPlain, conversation({"a", "b c", "d", "e"})), "b c$e$");
}

TEST(ChatMask, GenerationBlocksSayThemselvesWhatCounts) {
  EXPECT_EQ(counted_text(kBlocks, conversation({"a", "b", "c", "d"})), "b$\nd$\n");
}

TEST(ChatMask, MessagesThatDoNotCountAreLeftOut) {
  for (const auto& [source, expected] : {std::pair{kPlain, "d$"}, {kBlocks, "d$\n"}}) {
    Conversation chat = conversation({"a", "b", "c", "d"});
    chat.counted[1] = false;
    EXPECT_EQ(counted_text(source, chat), expected);
  }
}

TEST(ChatMask, FindsAnswersThatTheTemplateShortensWhenOthersFollow) {
  EXPECT_EQ(counted_text(kForgetful, conversation({"a", "why|b", "c", "how|d"})), "b$how|d$");
}

TEST(ChatMask, AnEmptyAnswerStillHasTheTokenThatEndsIt) {
  EXPECT_EQ(counted_text(kPlain, conversation({"a", "", "c", "d"})), "$d$");
  EXPECT_EQ(counted_text(kForgetful, conversation({"a", "why|", "c", "d"})), "$d$");
}

TEST(ChatMask, ContentLikeThePartsOfTheTemplateIsNotTakenForIt) {
  EXPECT_EQ(counted_text(kPlain, conversation({"[assistant]", "[user]", "[assistant]x", "x"})), "[user]$x$");
  EXPECT_EQ(counted_text(kForgetful, conversation({"x", "1|x", "x", "2|x"})), "x$2|x$");
}

/// Calls and thoughts; thoughts only of the last round, as Qwen3 does.
constexpr const char* kTools =
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content and loop.index0 > 2 %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if loop.last %}{{ ' ' }}{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"
    "<|endoftext|>{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

Json call_of(const char* name) {
  return {{"type", "function"}, {"function", {{"name", name}, {"arguments", {{"w", 3}}}}}};
}

TEST(ChatMask, CallsAndThoughtsAreFoundInATextThatChangesWhenMessagesFollow) {
  Conversation chat;
  chat.messages = {
      {{"role", "user"}, {"content", "a"}},
      {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call_of("f"), call_of("g")}}},
      {{"role", "tool"}, {"content", "9"}},
      {{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "why"}, {"tool_calls", {call_of("h")}}},
      {{"role", "tool"}, {"content", "9"}},
      {{"role", "assistant"}, {"content", "end"}}};
  chat.counted = {false, true, false, true, false, true};
  EXPECT_EQ(
      counted_text(kTools, chat),
      R"(<call>{"name": "f", "arguments": {"w": 3}}</call><call>{"name": "g", "arguments": {"w": 3}}</call>$)"
      R"(<think>why</think>b<call>{"name": "h", "arguments": {"w": 3}}</call>$)"
      " end$");
}

TEST(ChatMask, ResultsOfToolsInsideOfAnAnswerAreNotLearned) {
  // Calls, what the tools say, and then the content, in one turn, as Gemma 4 has it.
  const char* const inside =
      "{% for m in messages %}{% if m.role != 'tool' %}[{{ m.role }}]"
      "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"
      "{% if m.tool_calls %}{% for r in messages[loop.index:] if r.role == 'tool' %}({{ r.content }}){% "
      "endfor %}"
      "{% endif %}{{ m.content }}<|endoftext|>{{ '\\n' }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}";
  Conversation chat;
  chat.messages = {{{"role", "user"}, {"content", "a"}},
                   // It begins as the results do.
                   {{"role", "assistant"}, {"content", "(9) look"}, {"tool_calls", {call_of("f")}}},
                   {{"role", "tool"}, {"content", "9"}},
                   {{"role", "tool"}, {"content", "8"}},
                   {{"role", "user"}, {"content", "b"}},
                   {{"role", "assistant"}, {"content", "end"}}};
  chat.counted = {false, true, false, false, false, true};
  EXPECT_EQ(counted_text(inside, chat), R"(<call>{"name": "f", "arguments": {"w": 3}}</call>(9) look$end$)");
}

TEST(ChatMask, AnAnswerThatTheTemplateDoesNotWriteIsRefused) {
  Conversation chat = conversation({"a", "why|b", "c", "d"});
  chat.messages[1]["content"] = nullptr;
  const char* const silent = "{% for m in messages %}{{ m.role }}{{ loop.last }}<|endoftext|>{% endfor %}";
  EXPECT_CONTAINS(message_of<FormatError>([&] { counted_text(silent, chat); }),
                  "messages[1]: the chat template renders it in another way when messages follow");
}

TEST(ChatMask, AnAnswerIntoWhichTheTemplateWritesTheNextMessageIsRefused) {
  const Conversation chat = conversation({"a", "b", "c", "d"});
  // The answer's reasoning, the next question, and then its content.
  Conversation nested = chat;
  nested.messages[1]["reasoning_content"] = "why";
  const char* const inside =
      "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.reasoning_content or '' }}"
      "{% if not loop.last %}({{ messages[loop.index0 + 1].content }}){% endif %}{{ m.content }}{{ loop.last "
      "}}"
      "<|endoftext|>{% endif %}{% endfor %}";
  EXPECT_CONTAINS(message_of<FormatError>([&] { counted_text(inside, nested); }),
                  "messages[1]: the chat template writes the next message inside of it");
}

TEST(ChatMask, NoSpanIsLookedForWhenNoMessageCounts) {
  Conversation chat = conversation({"a", "why|b", "c", "d"});
  chat.messages[1]["tool_calls"] = Json::array();
  chat.counted.assign(chat.messages.size(), false);
  const char* const one_block =
      "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}";
  for (const char* source : {kForgetful, kPlain, one_block}) EXPECT_EQ(counted_text(source, chat), "");
}

TEST(ChatMask, BlocksThatCannotBeMatchedWithMessagesAreRefused) {
  const char* const one_block =
      "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}";
  Conversation chat = conversation({"a", "b", "c", "d"});
  chat.counted[1] = false;
  EXPECT_CONTAINS(message_of<FormatError>([&] { counted_text(one_block, chat); }),
                  "1 {% generation %} blocks for 2 messages of the assistant");
}

}  // namespace
}  // namespace stepforge::testing
