// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/builtin_templates.h"

#include <map>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/staged.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

const Json kTalk = {{{"role", "system"}, {"content", "s"}},
                    {{"role", "user"}, {"content", "a"}},
                    {{"role", "assistant"}, {"content", "b"}},
                    {{"role", "user"}, {"content", "c"}}};

TEST(BuiltinTemplates, WriteConversationsAsTheModelsOfTheirNamesReadThem) {
  const std::map<std::string, std::string> expected = {
      {"chatml",
       "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"},
      {"qwen",
       "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"},
      {"llama3",
       "<s><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>user<|end_header_id|>"
       "\n\na<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>user<|end_header_id|>"
       "\n\nc<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"gemma",
       "<s><start_of_turn>user\ns\n\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>"
       "user\nc<end_of_turn>\n"
       "<start_of_turn>model\n"},
      {"mistral", "<s>[INST] s\n\na[/INST] b</s>[INST] c[/INST]"},
      {"deepseek", "<s>s<｜User｜>a<｜Assistant｜>b</s><｜User｜>c<｜Assistant｜>"},
      {"alpaca",
       "<s>s\n\n### Instruction:\na\n\n### Response:\nb</s>\n\n### Instruction:\nc\n\n### Response:\n"}};
  const TempFolder folder;
  write_file_atomic(folder / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  EXPECT_EQ(builtin_templates().size(), expected.size());
  for (const BuiltinTemplate& known : builtin_templates()) {
    const ChatTemplate loaded = ChatTemplate::load(folder.path(), known.name);
    EXPECT_EQ(loaded.render(kTalk, {.add_generation_prompt = true}).text,
              expected.at(std::string(known.name)));
    EXPECT_THROW(loaded.render(kTalk, {.tools = Json::array({Json::object()})}), Error) << known.name;
  }
}

TEST(BuiltinTemplates, AFileOfThatNameComesFirstAndOtherNamesAreRefusedWithTheKnownOnes) {
  const TempFolder folder;
  write_file_atomic(folder / "chatml", "{{ 1 }}");
  EXPECT_EQ(read_chat_template(folder / "chatml"), "{{ 1 }}");
  EXPECT_EQ(read_chat_template("chatml"), find_builtin_template("chatml")->source);
  EXPECT_CONTAINS(message_of<UsageError>([] { read_chat_template("chatlm"); }),
                  "built in are chatml, llama3, gemma, mistral, qwen, deepseek, alpaca");
}

TEST(BuiltinTemplates, ThatNeedATokenThatTheTokenizerLacksAreRefused) {
  const TempFolder folder;
  write_file_atomic(folder / "tokenizer_config.json", R"({"bos_token": "<s>"})");
  const auto bytes = make_byte_tokenizer();
  const auto fault = [&](const char* name) {
    return message_of<UsageError>(
        [&] { require_template_tokens(name, ChatTemplate::load(folder.path(), name), *bytes); });
  };
  EXPECT_CONTAINS(fault("chatml"),
                  "data.chat_template = \"chatml\": the tokenizer has no token <|im_start|>");
  EXPECT_CONTAINS(fault("alpaca"), "ends answers with eos_token, which tokenizer_config.json does not name");
}

}  // namespace
}  // namespace stepforge::testing
