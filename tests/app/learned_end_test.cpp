// SPDX-License-Identifier: Apache-2.0
// A base model that learns conversations: what ends its answers, and the files that go from folder to run to export.
#include "stepforge/base/json.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

constexpr const char* kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A model of bytes whose chat tokens, 257 and 258, only added_tokens.json lists, published as bf16.
void make_base(const TempFolder& folder) {
  ASSERT_EQ(run_program(Strings{"train"} + small_run(folder / "first") +
                        Strings{"model.vocab_size=300", "training.steps=1"})
                .exit_code,
            0);
  output_of({"export", (folder / "first").string(), (folder / "base").string(), "--dtype", "bf16"});
  write_text(folder / "base/added_tokens.json", R"({"<|im_start|>": 257, "<|im_end|>": 258})");
  fs::remove(folder / "base/tokenizer_config.json");
  write_text(folder / "base/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  write_text(folder / "base/chat_template.jinja", kChatMl);
  write_text(folder / "base/tokenizer.model", "a model of SentencePiece");
  fs::create_directory(folder / "base/additional_chat_templates");
  write_text(folder / "base/additional_chat_templates/other.jinja", "{{ messages }}");
  write_text(folder / "base/README.md", "# base");
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
             "\n";
  write_text(folder / "chat.jsonl", lines);
}

/// Trains a step on conversations from the model `from`; what it says.
std::string tune(const TempFolder& folder, const std::string& from, const std::string& run) {
  const ProgramResult trained = run_program(
      {"train", "model.from=" + (folder / from).string(), "run_dir=" + (folder / run).string(),
       format("data.sources=[{{path=\"{}\",format=\"messages\"}}]", (folder / "chat.jsonl").string()),
       "data.packing=best_fit", "training.seq_len=64", "training.local_batch_size=2", "training.steps=1",
       "lr_scheduler.warmup_steps=0"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  output_of({"export", (folder / run).string(), (folder / (run + "-hf")).string()});
  return trained.err;
}

Json ends_in(const TempFolder& folder, const std::string& name) {
  return Json::parse(read_file(folder / name)).at("eos_token_id");
}

TEST(LearnedEnd, JoinsTheEndsOfTextInTheRunAndItsExportsAndStaysThere) {
  const TempFolder folder;
  make_base(folder);
  const Json both = {256, 258};
  EXPECT_CONTAINS(tune(folder, "base", "run"), "<|im_end|> (258)", "not taken from", "README.md");
  for (const char* name :
       {"run/generation_config.json", "run-hf/generation_config.json", "run-hf/config.json"})
    EXPECT_EQ(ends_in(folder, name), both) << name;
  tune(folder, "run-hf", "again");
  EXPECT_EQ(ends_in(folder, "again-hf/generation_config.json"), both);
  const std::string dtype = Json::parse(read_file(folder / "again-hf/config.json")).at("torch_dtype");
  EXPECT_EQ(dtype, "bfloat16");
  for (const char* name : {"added_tokens.json", "chat_template.jinja", "tokenizer.model",
                           "additional_chat_templates/other.jinja", "tokenizer_config.json"})
    EXPECT_EQ(read_file(folder / "again-hf" / name), read_file(folder / "base" / name)) << name;
}

TEST(LearnedEnd, IsNotAddedByPlainText) {
  const TempFolder folder;
  make_base(folder);
  write_text(folder / "tale.txt", std::string(400, 'a'));
  const ProgramResult trained = run_program(
      {"train", "model.from=" + (folder / "base").string(), "run_dir=" + (folder / "text").string(),
       format("data.sources=[{{path=\"{}\",format=\"text\"}}]", (folder / "tale.txt").string()),
       "training.seq_len=16", "training.local_batch_size=1", "training.steps=1",
       "lr_scheduler.warmup_steps=0"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(ends_in(folder, "text/generation_config.json"), 256);
}

}  // namespace
}  // namespace stepforge::testing
