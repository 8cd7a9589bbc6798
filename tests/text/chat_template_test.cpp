// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/chat_template.h"

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

const std::string kSource =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content|trim }}{{ m.thinking }}{% endfor %}"
    "{{ tools|length if tools }}{{ '>' if add_generation_prompt }}{{ extra }}";

const Json kMessages = {{{"role", "user"}, {"content", " a "}}, {{"role", "assistant"}, {"content", "b c"}}};

ChatTemplate loaded(const Json& config, const std::string& file = "") {
  const TempFolder folder;
  write_text(folder.path() / "tokenizer_config.json", config.dump());
  if (!file.empty()) write_text(folder.path() / "chat_template.jinja", file);
  return ChatTemplate::load(folder.path());
}

TEST(ChatTemplate, PassesMessagesSpecialTokensAndOptions) {
  const ChatTemplate chat =
      loaded({{"chat_template", kSource}, {"bos_token", {{"content", "<s>"}}}, {"eos_token", nullptr}});
  ChatTemplateOptions options;
  options.add_generation_prompt = true;
  options.tools = Json::array({{{"name", "f"}}});
  options.variables["extra"] = "!";
  EXPECT_EQ(chat.render(kMessages, options).text, "<s>[user]a[assistant]b c1>!");
}

TEST(ChatTemplate, TheFileComesBeforeTheConfiguration) {
  EXPECT_EQ(loaded({{"chat_template", "config"}}, "file").render(kMessages).text, "file");
}

TEST(ChatTemplate, AFileThatIsNamedReplacesTheFoldersButNotItsSpecialTokens) {
  const TempFolder folder;
  write_text(folder / "tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>"})");
  write_text(folder / "mine.jinja", "{{ bos_token }}mine");
  EXPECT_EQ(ChatTemplate::load(folder.path(), folder / "mine.jinja").render(kMessages).text, "<s>mine");
  EXPECT_CONTAINS(message_of<UsageError>([&] { ChatTemplate::load(folder.path(), folder / "no.jinja"); }),
                  "there is no chat template at");
}

TEST(ChatTemplate, ExistsInAFolderThatHasOne) {
  const TempFolder folder;
  EXPECT_FALSE(ChatTemplate::exists(folder.path()));
  write_text(folder / "tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_FALSE(ChatTemplate::exists(folder.path()));
  write_text(folder / "chat_template.jinja", "file");
  EXPECT_TRUE(ChatTemplate::exists(folder.path()));
}

TEST(ChatTemplate, TheFingerprintKnowsTemplateAndSpecialTokens) {
  const auto print = [](const char* source, const char* bos) {
    return loaded({{"chat_template", source}, {"bos_token", bos}}).fingerprint();
  };
  EXPECT_EQ(print("a", "<s>"), print("a", "<s>"));
  EXPECT_NE(print("a", "<s>"), print("b", "<s>"));
  EXPECT_NE(print("a", "<s>"), print("a", "<t>"));
}

TEST(ChatTemplate, OfSeveralOneIsChosenByNameOrTools) {
  const Json both = {{{"name", "default"}, {"template", "d"}}, {{"name", "tool_use"}, {"template", "t"}}};
  const ChatTemplate chat = loaded({{"chat_template", both}});
  ChatTemplateOptions options;
  EXPECT_EQ(chat.render(kMessages, options).text, "d");
  options.tools = Json::array();
  EXPECT_EQ(chat.render(kMessages, options).text, "t");
  options.template_name = "rag";
  EXPECT_TRUE(
      contains(message_of<UsageError>([&] { chat.render(kMessages, options); }), "rag", "default, tool_use"));
}

TEST(ChatTemplate, DropsNullMembersAndPassesReasoningUnderAllNames) {
  const Json messages = {{{"role", "assistant"}, {"content", nullptr}, {"reasoning", "why"}}};
  EXPECT_EQ(loaded({{"chat_template", "{{ messages[0] }}"}}).render(messages).text,
            "{'thinking': 'why', 'role': 'assistant', 'reasoning': 'why', 'reasoning_content': 'why'}");
}

TEST(ChatTemplate, ContinuesTheLastMessage) {
  ChatTemplateOptions options;
  options.continue_final_message = true;
  const Json messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b "}}};
  EXPECT_EQ(loaded({{"chat_template", "{% for m in messages %}<{{ m.content }}>{% endfor %}"}})
                .render(messages, options)
                .text,
            "<a><b ");
  EXPECT_EQ(loaded({{"chat_template", "{% for m in messages %}<{{ m.content|trim }}>{% endfor %}"}})
                .render(messages, options)
                .text,
            "<a><b");
  EXPECT_TRUE(contains(message_of<Error>([&] { loaded({{"chat_template", "x"}}).render(messages, options); }),
                       "continue_final_message"));
}

TEST(ChatTemplate, AFolderWithoutOneIsAnErrorThatSaysWhatToAdd) {
  EXPECT_TRUE(contains(message_of<UsageError>([] { loaded(Json::object()); }), "chat_template.jinja"));
}

}  // namespace
}  // namespace stepforge::testing
