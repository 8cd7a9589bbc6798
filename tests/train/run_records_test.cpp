// SPDX-License-Identifier: Apache-2.0
// The files of a run: metrics.jsonl, run.json, log.txt and the run folder.
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "stepforge/base/json.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(LearningRate, IsLoggedAsUsed) {
  // Without moments and decay an update is lr * sign(gradient): the largest change of a weight is the rate.
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + Strings{"optimizer.beta1=0.0", "optimizer.beta2=0.0",
                                                    "optimizer.eps=1e-30", "optimizer.weight_decay=0.0",
                                                    "optimizer.lr=0.01", "lr_scheduler.warmup_steps=3",
                                                    "lr_scheduler.min_lr_factor=0.1"});
  Trainer& trainer = run.build();
  std::vector<double> used;
  at::Tensor before = trainer.store->unit(1).master().clone();
  trainer.add_callback(std::make_unique<CallAt>([&](Trainer& now) {
    const at::Tensor& after = now.store->unit(1).master();
    used.push_back((after - before).abs().max().item<double>());
    before = after.clone();
  }));
  trainer.run();
  const auto records = read_jsonl(folder / "run" / "metrics.jsonl");
  ASSERT_EQ(records.size(), used.size());
  for (size_t i = 0; i < used.size(); ++i) {
    EXPECT_NEAR(*records[i].find(metric::lr), used[i], 1e-6) << "step " << i + 1;
  }
  EXPECT_DOUBLE_EQ(*records[0].find(metric::lr), 0.01 / 3);
}

TEST(MetricsFile, HasTheseFieldsInEveryRecord) {
  const TempFolder folder;
  TestRun(trainer_run(folder / "run") +
          Strings{"data.validation_fraction=0.2", "validation.freq=8", "metrics.peak_tflops=1.0"})
      .run();
  const auto records = read_jsonl(folder / "run" / "metrics.jsonl");
  ASSERT_EQ(records.size(), 9U);
  const auto fields = [](const MetricsRecord& record) {
    Strings names;
    for (const auto& [name, value] : record.values) names.push_back(name);
    return names;
  };
  const Strings train = {"loss_metrics/global_avg_loss",
                         "loss_metrics/global_max_loss",
                         "grad_norm",
                         "lr",
                         "memory/max_active(GiB)",
                         "memory/max_resident(GiB)",
                         "throughput(tps)",
                         "job_throughput(tps)",
                         "job_throughput(labels/s)",
                         "data/padding(%)",
                         "data/labels(%)",
                         "tflops",
                         "mfu(%)",
                         "time_metrics/end_to_end(s)",
                         "time_metrics/data_loading(s)",
                         "time_metrics/data_loading(%)",
                         "n_tokens_seen",
                         "n_labels_seen"};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(records[i].kind, "train");
    EXPECT_EQ(records[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(fields(records[i]), train);
    EXPECT_EQ(*records[i].find(metric::tokens_seen), static_cast<double>(i + 1) * 4 * 32);
  }
  EXPECT_EQ(records[8].kind, "validation");
  // Synthetic tokens have no bytes, so there is no bits_per_byte.
  EXPECT_EQ(fields(records[8]), (Strings{"validation_metrics/global_avg_loss",
                                         "validation_metrics/perplexity", "validation_throughput(tps)"}));
}

TEST(MetricsFile, CountsAttentionOfPackedDocumentsPerDocument) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + Strings{"data.synthetic_document_length=8", "training.steps=2"});
  run.run();
  const Trainer& trainer = run.trainer();
  const Batch rows = trainer.data.train->rows(4, 4);
  ASSERT_GT(rows.cu_seqlens.size(), 5U) << "rows hold several documents";
  double flops = 0.0;
  for (size_t i = 1; i < rows.cu_seqlens.size(); ++i) {
    const int64_t length = rows.cu_seqlens[i] - rows.cu_seqlens[i - 1];
    flops += static_cast<double>(length) * trainer.job.whole.flops_per_token(length);
  }
  EXPECT_NEAR(trainer.last_flops, flops, 1e-9 * flops);
  const MetricsRecord record = read_jsonl(folder / "run" / "metrics.jsonl").at(1);
  EXPECT_NEAR(*record.find(metric::tflops) * 1e12 * *record.find(metric::end_to_end), flops, 1e-6 * flops);
}

TEST(LogFile, HasTheLinesOfEveryStart) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run");
  TestRun(args).run(3);
  TestRun resumed(args);
  resumed.run();
  const std::string log = resumed.log_text();
  for (const char* line : {"step: 1  loss", "step: 3  loss", "resumed from", "step: 8  loss"}) {
    EXPECT_CONTAINS(log, line) << line;
  }
}

TEST(LogFile, StatesTheShapeOfAStepAndHowOftenTheTextIsRead) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(10));
  const Strings args =
      trainer_run(folder / "run") +
      Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()), "data.document=line"};
  int64_t times = 0;
  std::string log;
  {
    TestRun run(args);
    run.run();
    times = static_cast<int64_t>(run.trainer().passes(8));
    log = run.log_text();
  }
  ASSERT_GE(times, 2);
  EXPECT_CONTAINS(log, "step: 2 micro-batches x 2 rows x 32 tokens = 128 tokens") << log;
  EXPECT_CONTAINS(log, format("the run reads your text {} times and validation is off", times)) << log;
  EXPECT_FALSE(contains(log, "-0.0 %"));
  EXPECT_FALSE(contains(log, "nothing to do"));
  TestRun again(args);
  again.run();
  EXPECT_CONTAINS(again.log_text(), "nothing to do: step 8 of 8 is done");
}

TEST(MetricsFile, HasEachStepOnceAfterACrashAndAResume) {
  const TempFolder folder;
  const Strings args =
      trainer_run(folder / "run") + Strings{"training.steps=12", "checkpoint.interval=4",
                                            "data.validation_fraction=0.2", "validation.freq=3"};
  {
    TestRun run(args);
    Trainer& trainer = run.build();
    trainer.add_callback(std::make_unique<CallAt>([](Trainer& now) {
      if (now.state.step == 11) throw Error("power failure");
    }));
    EXPECT_THROW(trainer.run(), Error);
  }
  TestRun(args).run();
  std::vector<int64_t> train;
  std::vector<int64_t> validation;
  for (const auto& record : read_jsonl(folder / "run" / "metrics.jsonl")) {
    (record.kind == "train" ? train : validation).push_back(record.step);
  }
  EXPECT_EQ(train, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(validation, (std::vector<int64_t>{3, 6, 9, 12}));
}

TEST(MetricsFile, IsCompleteUpToACheckpointBeforeTheCheckpointExists) {
  class SlowSink : public MetricsSink {
   public:
    std::string name() const override { return "slow"; }
    void write(const MetricsRecord& record) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  };
  class AtSave : public Callback {
   public:
    explicit AtSave(fs::path file) : file_(std::move(file)) {}
    std::string_view name() const override { return "at save"; }
    void save(Trainer& trainer, const fs::path& /*folder*/) override {
      const auto records = read_jsonl(file_);
      ASSERT_FALSE(records.empty());
      EXPECT_EQ(records.back().step, trainer.state.step);
    }

   private:
    fs::path file_;
  };
  const TempFolder folder;
  const fs::path file = folder / "run" / "metrics.jsonl";
  TestRun run(trainer_run(folder / "run") + Strings{"checkpoint.interval=1", "training.steps=2"});
  run.trainer().replace_build_step("metrics", [&](Trainer& trainer) {
    std::vector<std::unique_ptr<MetricsSink>> sinks;
    sinks.push_back(std::make_unique<SlowSink>());
    sinks.push_back(std::make_unique<JsonlSink>(file, trainer.log));
    trainer.metrics = std::make_unique<SinkQueue>(std::move(sinks), trainer.log);
  });
  run.trainer().add_callback(std::make_unique<AtSave>(file));
  run.run();
  EXPECT_EQ(run.records.size(), 2U);
}

TEST(RunHistory, HasStepsTokensAndEndOfEveryStart) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") + Strings{"checkpoint.interval=3"};
  {
    TestRun run(args);
    Trainer& trainer = run.build();
    trainer.add_callback(std::make_unique<CallAt>([](Trainer& now) {
      if (now.state.step == 5) throw Error("power failure");
    }));
    EXPECT_THROW(trainer.run(), Error);
  }
  TestRun(args).run();
  const auto history = read_run_history(folder / "run");
  ASSERT_EQ(history.size(), 2U);
  EXPECT_EQ(history[0].begin_step, 0);
  EXPECT_EQ(history[0].exit_reason, "failed: power failure");
  EXPECT_EQ(history[1].begin_step, 3);
  EXPECT_EQ(history[1].end_step, 8);
  EXPECT_EQ(history[1].tokens, 8 * 4 * 32);
  EXPECT_EQ(history[1].exit_reason, "completed");
  EXPECT_GT(history[0].seconds, 0.0);
  EXPECT_GT(history[1].seconds, history[0].seconds);
  for (const auto& start : history) {
    EXPECT_FALSE(start.host.empty());
    EXPECT_EQ(start.pid, getpid());
    EXPECT_EQ(start.time.size(), std::string("2026-03-01T12:30:00Z").size());
    EXPECT_FALSE(start.commit.empty());
  }
}

TEST(RunHistory, HasTheTokensOfAResumedStartFromItsBeginning) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") + Strings{"checkpoint.interval=3"};
  TestRun(args).run(3);
  TestRun resumed(args);
  Trainer& trainer = resumed.build();
  class AtBegin : public Callback {
   public:
    explicit AtBegin(fs::path folder) : folder_(std::move(folder)) {}
    std::string_view name() const override { return "at begin"; }
    void train_begin(Trainer& trainer) override {
      EXPECT_EQ(read_run_history(folder_).back().exit_reason, "running");
      EXPECT_EQ(read_run_history(folder_).back().tokens, 3 * 4 * 32);
    }

   private:
    fs::path folder_;
  };
  trainer.add_callback(std::make_unique<AtBegin>(folder / "run"));
  trainer.run();
}

TEST(RunFolderContent, IsConfigHistoryLogMetricsAndCheckpoints) {
  const TempFolder folder;
  TestRun(trainer_run(folder / "run") + Strings{"checkpoint.interval=3", "checkpoint.keep_latest_k=2"}).run();
  EXPECT_EQ(names_in(folder / "run"), (std::set<std::string>{"checkpoint", "config.toml", "log.txt",
                                                             "metrics.jsonl", "run.json", "run.lock"}));
  EXPECT_EQ(names_in(folder / "run" / "checkpoint"), (std::set<std::string>{"step-6", "step-8"}));
  EXPECT_EQ(
      names_in(folder / "run" / "checkpoint" / "step-8"),
      (std::set<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}));
}

TEST(RunFolderContent, HasTheConfigurationThatRan) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run"));
  run.run();
  EXPECT_EQ(load_config(folder / "run" / "config.toml").config, run.trainer().config);
  EXPECT_EQ(run.trainer().config.model.vocab_size, 257);
}

TEST(RunFolderContent, IsRefusedBeforeBuildingIfTheFolderIsAFile) {
  const TempFolder folder;
  write_text(folder / "run", "I am a file");
  TestRun run(trainer_run(folder / "run"));
  EXPECT_CONTAINS(message_of<UsageError>([&] { run.trainer().build(); }), "is a file");
  EXPECT_EQ(run.trainer().store, nullptr);
  EXPECT_EQ(run.trainer().tokenizer, nullptr);
  EXPECT_EQ(run.trainer().data.train, nullptr);
}

TEST(RunFolderContent, OfALiveRunIsRefusedToASecondRun) {
  const TempFolder folder;
  TestRun first(trainer_run(folder / "run"));
  first.build();
  TestRun second(trainer_run(folder / "run"));
  const std::string message = message_of<UsageError>([&] { second.trainer().build(); });
  EXPECT_CONTAINS(message, "in use by process");
  EXPECT_EQ(second.trainer().store, nullptr);
}

}  // namespace
}  // namespace stepforge::testing
