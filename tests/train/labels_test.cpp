// SPDX-License-Identifier: Apache-2.0
// What is learned from, and what a run counts: labels, tokens without padding, passes over the data.
#include "stepforge/data/loader.h"
#include "stepforge/metrics/names.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}";

std::string talk(int64_t question, const std::string& answer) {
  return format(
      R"({{"messages": [{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "{}"}}]}})"
      "\n",
      std::string(static_cast<size_t>(question), 'q'), answer);
}

Strings on_talks(const TempFolder& folder, const std::string& lines, const Strings& more = {}) {
  write_text(folder / "chat.jsonl", lines);
  write_text(folder / "template.jinja", kTemplate);
  return trainer_run(folder / "run") +
         Strings{
             format("data.sources=[{{path=\"{}\",format=\"messages\"}}]", (folder / "chat.jsonl").string()),
             format("data.chat_template=\"{}\"", (folder / "template.jinja").string()), "training.seq_len=64",
             "training.local_batch_size=2", "training.global_batch_size=2"} +
         more;
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(Labels, QuestionsThatFillARowAreLeftOutAndCounted) {
  for (const char* packing : {"best_fit", "soft", "none", "budget"}) {
    const TempFolder folder;
    TestRun run(on_talks(folder, repeated(talk(90, "Yes"), 5) + repeated(talk(5, "No"), 9),
                         {format("data.packing={}", packing), "training.steps=3"}));
    run.run();
    EXPECT_CONTAINS(run.log_text(), "chat.jsonl: 5 of 14 conversations", "are left out") << packing;
    for (const StepRecord& step : run.records) EXPECT_GT(step.loss, 0.0);
    EXPECT_EQ(run.trainer().data.sources.at(0).account->unlabelled_documents, 5);
  }
}

TEST(Labels, DataOfWhichCuttingLeavesNoLabelAreRefused) {
  for (const char* packing : {"best_fit", "soft", "none", "budget"}) {
    const TempFolder folder;
    TestRun run(on_talks(folder, repeated(talk(90, "Yes"), 5), {format("data.packing={}", packing)}));
    EXPECT_CONTAINS(message_of<UsageError>([&] { run.build(); }),
                    "none of its 5 documents has a label in a row of 64 tokens");
  }
}

/// Rows of one conversation end to end: only the last ones have labels.
Strings rarely_labelled(const TempFolder& folder, const Strings& more = {}) {
  return on_talks(folder, repeated(talk(500, "An answer."), 3),
                  Strings{"data.packing=concat", "data.shuffle=false", "training.steps=8",
                          "optimizer.lr=0.01", "metrics.log_freq=1", "lr_scheduler.warmup_steps=0"} +
                      more);
}

TEST(Labels, AStepWithoutThemChangesNoBitAndHasNoLoss) {
  const TempFolder folder;
  TestRun run(rarely_labelled(folder));
  run.run();
  ASSERT_EQ(run.records.size(), 8U);
  const auto metrics = read_jsonl(folder / "run" / "metrics.jsonl");
  int64_t learned = 0;
  for (size_t i = 1; i < run.records.size(); ++i) {
    const bool has_loss = metrics.at(i).find(metric::loss).has_value();
    EXPECT_EQ(has_loss, run.records[i].bits != run.records[i - 1].bits) << "step " << i + 1;
    learned += has_loss ? 1 : 0;
  }
  EXPECT_GT(learned, 0);
  EXPECT_LT(learned, 7);
  EXPECT_EQ(run.trainer().state.unlabelled, 8 - run.trainer().optimizer->steps());
  EXPECT_EQ(run.trainer().state.skipped, 0) << "nothing was wrong with the numbers";
  EXPECT_CONTAINS(run.log_text(), "has a label, so it changes nothing");
}

TEST(Labels, AStepWithoutThemIsTheSameOnSeveralRanks) {
  const TempFolder folder;
  const Strings shared = {"training.local_batch_size=1", "training.reduction=ordered",
                          "checkpoint.enable=false"};
  const Records one = numbers(TestRun(rarely_labelled(folder, shared)).run());
  const TempFolder other;
  const auto two = RankThreads(2).run(rarely_labelled(other, shared));
  expect_same_numbers(two, one, "two ranks");
}

TEST(Tokens, ArePaddedNowhereInTheCounts) {
  const TempFolder folder;
  TestRun run(on_talks(folder, repeated(talk(5, "No"), 20),
                       {"data.packing=none", "training.steps=4", "metrics.log_freq=1"}));
  run.run();
  const Batch row = run.trainer().data.train->rows(0, 1);
  ASSERT_LT(row.real_tokens, 40);
  const MetricsRecord last = read_jsonl(folder / "run" / "metrics.jsonl").back();
  EXPECT_EQ(*last.find(metric::tokens_seen), static_cast<double>(8 * row.real_tokens));
  EXPECT_EQ(*last.find(metric::labels_seen), static_cast<double>(8 * row.valid_labels));
  const auto of_row = [&](int64_t count, int64_t all) {
    return 100.0 * static_cast<double>(count) / static_cast<double>(all);
  };
  EXPECT_DOUBLE_EQ(*last.find(metric::padding_share), of_row(row.seq_len - row.real_tokens, row.seq_len));
  EXPECT_DOUBLE_EQ(*last.find(metric::label_share), of_row(row.valid_labels, row.real_tokens));
  EXPECT_EQ(*last.find(metric::tps), *last.find(metric::job_tps)) << "one rank is the job";
  const RunStart start = read_run_history(folder / "run").back();
  EXPECT_EQ(start.tokens, 8 * row.real_tokens);
  EXPECT_EQ(start.labels, 8 * row.valid_labels);
  EXPECT_EQ(start.data.at(0).at("labels"), 20 * row.valid_labels);
  EXPECT_CONTAINS(run.log_text(),
                  format("run: 4 steps, {} tokens and {} labels", 8 * row.real_tokens, 8 * row.valid_labels));
}

TEST(Tokens, AreThoseOfAllRanksAndTheRateOfARankIsItsShare) {
  const TempFolder one;
  const Strings more = {"data.packing=none", "training.steps=4", "training.local_batch_size=1",
                        "metrics.log_freq=1"};
  const std::string lines = repeated(talk(5, "No"), 10) + repeated(talk(9, "Maybe"), 10);
  const Records single = TestRun(on_talks(one, lines, more)).run();
  const TempFolder two;
  const auto ranks = RankThreads(2).run(on_talks(two, lines, more));
  EXPECT_EQ(ranks[0].back().tokens_seen, single.back().tokens_seen);
  EXPECT_EQ(ranks[1].back().tokens_seen, single.back().tokens_seen);
  const MetricsRecord last = read_jsonl(two / "run" / "metrics.jsonl").back();
  EXPECT_DOUBLE_EQ(*last.find(metric::tps) * 2, *last.find(metric::job_tps));
}

TEST(Epochs, HaveAllTheirRows) {
  for (const auto& [rows, steps] : {std::pair{15, 8}, {11, 6}, {3, 2}, {16, 8}}) {
    for (const char* rest : {"carry", "smaller_step"}) {
      const TempFolder folder;
      TestRun run(on_talks(
          folder, repeated(talk(5, "No"), rows),
          {"data.packing=none", "training.steps=0", "training.epochs=4", "training.local_batch_size=8",
           "training.global_batch_size=8", format("data.epoch_remainder={}", rest)}));
      run.build();
      const int64_t filled = (rows + 7) / 8 * 4;
      EXPECT_EQ(run.trainer().total_steps, std::string_view(rest) == "carry" ? steps : filled) << rows;
      EXPECT_GE(run.trainer().passes(run.trainer().total_steps), 4.0);
    }
  }
}

TEST(Packing, ConversationsStayWholeUnlessToldOtherwise) {
  const TempFolder folder;
  TestRun run(on_talks(folder, repeated(talk(20, "No"), 20)));
  run.build();
  EXPECT_EQ(run.trainer().config.data.packing, Packing::best_fit);
  EXPECT_CONTAINS(read_file(folder / "run" / "config.toml"), "packing = \"best_fit\"");
  const TempFolder other;
  TestRun cut(on_talks(other, repeated(talk(20, "No"), 20), {"data.packing=concat"}));
  cut.build();
  EXPECT_CONTAINS(cut.log_text(), "chat.jsonl: ", " of 19 conversations are cut at the ends of rows");
}

/// A loader whose rows cannot be read from one step on.
class BrokenLoader : public Loader {
 public:
  BrokenLoader(const Trainer& trainer, int64_t good)
      : Loader(trainer.data.train, trainer.job.batch), good_(good) {}
  Batch next() override {
    if (good_-- == 0) throw Error("a.bin was truncated");
    return Loader::next();
  }

 private:
  int64_t good_;
};

TEST(DataFault, SavesTheStepsBeforeItAndEndsWithItsError) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") + Strings{"training.local_batch_size=4"};
  {
    TestRun run(args);
    run.trainer().replace_build_step(
        "loader", [](Trainer& trainer) { trainer.loader = std::make_unique<BrokenLoader>(trainer, 3); });
    EXPECT_EQ(message_of<Error>([&] { run.run(); }), "a.bin was truncated");
    EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoint/step-3"));
    EXPECT_CONTAINS(read_run_history(folder / "run").back().exit_reason, "failed: a.bin was truncated");
  }
  TestRun resumed(args);
  const Records rest = resumed.run();
  const TempFolder whole;
  const Records uncut = TestRun(trainer_run(whole / "run") + Strings{"training.local_batch_size=4"}).run();
  ASSERT_EQ(rest.size(), 5U);
  EXPECT_EQ(rest.back().bits, uncut.back().bits);
}

TEST(DataFault, OfOneRankSavesTheStepsOfAll) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") + Strings{"training.local_batch_size=2"};
  RankThreads ranks(2);
  ranks.run([&](int) { return args; },
            [](TestRun& run, int rank) {
              if (rank == 0) return;
              run.trainer().replace_build_step("loader", [](Trainer& trainer) {
                trainer.loader = std::make_unique<BrokenLoader>(trainer, 3);
              });
            });
  EXPECT_CONTAINS(ranks.failures[0], "step 4", "another rank could not read its rows");
  EXPECT_EQ(ranks.failures[1], "a.bin was truncated");
  EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoint/step-3"));
  const TempFolder whole;
  const Records uncut = TestRun(trainer_run(whole / "run") + Strings{"training.local_batch_size=4"}).run();
  const auto resumed = RankThreads(2).run(args);
  EXPECT_EQ(resumed[0].size(), 5U);
  EXPECT_NEAR(resumed[0].back().loss, uncut.back().loss, 1e-6);
}

TEST(DataFault, AChangedTextIsNoticedWhereverItChanges) {
  const TempFolder folder;
  std::string text = some_text(150'000);  // more than a fingerprint samples
  const auto args = [&] {
    write_text(folder / "tale.txt", text);
    return trainer_run(folder / "run") +
           Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string())};
  };
  TestRun(args()).run(3);
  const std::string saved = read_file(folder / "run/checkpoint/step-3/state.json");
  EXPECT_CONTAINS(saved, "\"data_content\"", "\"tokenizer\"");
  // A byte is a token of 16 bits. This one is in the middle between two of the 256 samples.
  const size_t stride = (2 * (text.size() + 1) - 4096) / 255;
  text[(stride * 100 + stride / 2) / 2] = '#';
  TestRun changed(args());
  EXPECT_CONTAINS(message_of<UsageError>([&] { changed.build(); }), "data of other contents");
}

}  // namespace
}  // namespace stepforge::testing
