// SPDX-License-Identifier: Apache-2.0
// Training on conversations: which labels count, and exact resume on any number of ranks.
#include "stepforge/checkpoint/native.h"
#include "stepforge/train/builtin_callbacks.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

/// Questions and answers of different lengths.
std::string conversations(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += format(
        R"({{"messages": [{{"role": "user", "content": "{}?"}}, {{"role": "assistant", "content": "{}."}}]}})"
        "\n",
        std::string(static_cast<size_t>(1 + i * 7 % 13), static_cast<char>('a' + i % 26)),
        std::string(static_cast<size_t>(1 + i * 5 % 11), static_cast<char>('A' + i % 26)));
  }
  return lines;
}

Strings chat_job(const TempFolder& folder, const std::string& name, const std::string& packing = "soft") {
  write_text(folder / "chat.jsonl", conversations(150));
  write_text(folder / "template.jinja", kTemplate);
  return trainer_run(folder / name) +
         Strings{
             format("data.sources=[{{path=\"{}\",format=\"messages\"}}]", (folder / "chat.jsonl").string()),
             format("data.chat_template=\"{}\"", (folder / "template.jinja").string()),
             format("data.packing={}", packing),
             "training.seq_len=64",
             "training.local_batch_size=1",
             "training.global_batch_size=8",
             "training.steps=9",
             "training.reduction=ordered",
             "checkpoint.async=false",
             "checkpoint.interval=1",
             "checkpoint.keep_latest_k=0"};
}

TEST(ChatTraining, OnlyTheAssistantsTokensAreLabels) {
  const TempFolder folder;
  TestRun run(chat_job(folder, "run", "none"));
  run.build();
  const Batch batch = run.trainer().loader->stream().rows(0, 20);
  for (int64_t i = 0; i < batch.rows * batch.seq_len; ++i) {
    const int32_t label = batch.labels[static_cast<size_t>(i)];
    if (label != kIgnoredLabel) {
      EXPECT_TRUE((label >= 'A' && label <= 'Z') || label == '.' || label == 256) << label;
    }
  }
  EXPECT_GT(batch.valid_labels, 20 * 2);
}

TEST(ChatTraining, SamplesUseTheTemplate) {
  const TempFolder folder;
  const Strings sampling{"sampling.freq=3", "sampling.prompt=Hi", "sampling.max_tokens=4"};
  TestRun run(chat_job(folder, "run") + sampling);
  run.run();
  EXPECT_EQ(sample_prompt(run.trainer().config), "[user]Hi<|endoftext|>[assistant]");
  Config text = run.trainer().config;
  text.data.sources[0].format = DataFormat::jsonl;
  EXPECT_EQ(sample_prompt(text), "Hi");
}

// Rows, masks and order are functions of the global row number alone.
TEST(ChatTraining, ResumesBitExactlyOnOneTwoAndFourRanks) {
  for (const char* packing : {"soft", "best_fit", "none", "hard"}) {
    const TempFolder folder;
    const Records one = numbers(TestRun(chat_job(folder, "one", packing)).run());
    ASSERT_EQ(one.size(), 9U);
    const Strings moved = chat_job(folder, "moved", packing);
    Records found;
    for (const auto& [ranks, last] : {std::pair{1, 2}, {2, 4}, {4, 6}, {2, 7}, {1, 9}}) {
      const auto records = RankThreads(ranks).run(moved, last);
      for (const StepRecord& record : numbers(records[0])) found.push_back(record);
    }
    EXPECT_EQ(found, one) << packing;
  }
}

TEST(ChatTraining, TheRunKeepsItsChatTemplate) {
  const TempFolder folder;
  TestRun run(chat_job(folder, "run"));
  run.build();
  EXPECT_EQ(read_file(folder / "run" / "tokenizer" / "chat_template.jinja"), kTemplate);
}

}  // namespace
}  // namespace stepforge::testing
