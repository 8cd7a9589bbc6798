// SPDX-License-Identifier: Apache-2.0
// The order of events, and replaced build steps.
#include <algorithm>

#include "stepforge/kernels/cpu/bf16_blocks.h"
#include "stepforge/optim/param_groups.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/train/callback_kinds.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// Records every event with the number of finished steps.
class EventRecorder : public PreUpdateCallback {
 public:
  explicit EventRecorder(Strings& events) : events_(events) {}
  std::string_view name() const override { return "recorder"; }
  void init_end(Trainer& trainer) override { record("init_end", trainer); }
  void load(Trainer& trainer) override { record("load", trainer); }
  void train_begin(Trainer& trainer) override { record("train_begin", trainer); }
  void epoch_begin(Trainer& trainer) override { record("epoch_begin", trainer); }
  void step_begin(Trainer& trainer) override { record("step_begin", trainer); }
  void micro_step_end(Trainer& trainer) override { record("micro_step_end", trainer); }
  void pre_update(Trainer& trainer) override { record("pre_update", trainer); }
  void step_end(Trainer& trainer) override { record("step_end", trainer); }
  void log(Trainer& trainer, MetricsRecord& /*record*/) override { record("log", trainer); }
  void evaluate(Trainer& trainer) override { record("evaluate", trainer); }
  void save(Trainer& trainer, const std::filesystem::path& folder) override {
    record(format("save of {}", folder.filename().string()).c_str(), trainer);
  }
  void save_failed(Trainer& trainer, const std::string& /*reason*/) override {
    record("save_failed", trainer);
  }
  void epoch_end(Trainer& trainer) override { record("epoch_end", trainer); }
  void train_end(Trainer& trainer) override { record("train_end", trainer); }

 private:
  void record(const char* event, const Trainer& trainer) {
    events_.push_back(format("{} {}", event, trainer.state.step));
  }
  Strings& events_;
};

/// 4 steps in 2 epochs, 2 micro-batches a step.
Strings two_epochs(const TempFolder& folder) {
  return trainer_run(folder / "run") +
         Strings{"training.steps=4",  "data.synthetic_tokens=320", "data.validation_fraction=0.2",
                 "validation.freq=2", "metrics.log_freq=2",        "checkpoint.interval=3"};
}

Strings events_of(const Strings& args) {
  Strings events;
  TestRun run(args);
  run.trainer().add_callback(std::make_unique<EventRecorder>(events));
  run.build();
  run.trainer().run();
  return events;
}

/// The events of the step that follows `done` finished steps.
Strings step_events(int done) {
  return {format("step_begin {}", done), format("micro_step_end {}", done), format("micro_step_end {}", done),
          format("pre_update {}", done), format("step_end {}", done + 1)};
}

TEST(Callbacks, OfAWholeRunComeInTheDocumentedOrder) {
  const TempFolder folder;
  const Strings expected = Strings{"init_end 0", "train_begin 0", "epoch_begin 0"} + step_events(0) +
                           Strings{"log 1"} + step_events(1) +
                           Strings{"log 2", "evaluate 2", "epoch_end 2", "epoch_begin 2"} + step_events(2) +
                           Strings{"save of step-3 3"} + step_events(3) +
                           Strings{"log 4", "evaluate 4", "epoch_end 4", "save of step-4 4", "train_end 4"};
  EXPECT_EQ(events_of(two_epochs(folder)), expected);
}

TEST(Callbacks, OfAResumedRunComeInTheDocumentedOrder) {
  const TempFolder folder;
  TestRun(two_epochs(folder)).run(3);
  const Strings expected = Strings{"init_end 3", "load 3", "train_begin 3"} + step_events(3) +
                           Strings{"log 4", "evaluate 4", "epoch_end 4", "save of step-4 4", "train_end 4"};
  EXPECT_EQ(events_of(two_epochs(folder)), expected);
}

TEST(Callbacks, OfASkippedStepLackOnlyTheUpdate) {
  const TempFolder folder;
  const Strings events =
      events_of(two_epochs(folder) + Strings{"training.nonfinite=skip", "debug.plant_nan_step=2",
                                             "debug.plant_nan_block=layers.0"});
  EXPECT_EQ(std::count(events.begin(), events.end(), "pre_update 1"), 0);
  EXPECT_EQ(std::count(events.begin(), events.end(), "micro_step_end 1"), 2);
  EXPECT_EQ(std::count(events.begin(), events.end(), "step_end 2"), 1);
}

TEST(Callbacks, OfAnEventAreCalledInTheOrderInWhichTheyWereAdded) {
  const TempFolder folder;
  std::string order;
  TestRun run(two_epochs(folder));
  for (const char name : {'a', 'b', 'c'}) {
    run.trainer().add_callback(std::make_unique<CallAt>([&order, name](Trainer&) { order += name; }));
  }
  run.build();
  run.trainer().run();
  EXPECT_EQ(order, "abcabcabcabc");
}

TEST(Callbacks, AddedBeforeBuildComeAfterTheBuiltInOnes) {
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  // The trainer has added the loss to the smoothed loss before a user's callback sees the end of the step.
  bool first = true;
  run.trainer().add_callback(std::make_unique<CallAt>([&](Trainer& trainer) {
    if (!std::exchange(first, false)) return;
    EXPECT_GT(trainer.state.smoothed_loss.weight, 0.0);
  }));
  run.build();
  run.trainer().run();
  EXPECT_FALSE(first);
}

TEST(Callbacks, SeeOldWeightsInPreUpdateAndNewOnesInStepEnd) {
  class Watcher : public PreUpdateCallback {
   public:
    std::string_view name() const override { return "watcher"; }
    void step_begin(Trainer& trainer) override { before_ = bits_of(trainer); }
    void pre_update(Trainer& trainer) override { EXPECT_EQ(bits_of(trainer), before_); }
    void step_end(Trainer& trainer) override { EXPECT_NE(bits_of(trainer), before_); }

   private:
    std::string before_;
  };
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  run.trainer().add_callback(std::make_unique<Watcher>());
  run.build();
  run.trainer().run();
}

TEST(Callbacks, SeeLossAndNormOfTheCurrentStepInPreUpdate) {
  class Watcher : public PreUpdateCallback {
   public:
    std::string_view name() const override { return "watcher"; }
    void pre_update(Trainer& trainer) override { seen_ = trainer.last_step; }
    void step_end(Trainer& trainer) override {
      EXPECT_EQ(trainer.last_step.loss, seen_.loss);
      EXPECT_EQ(trainer.last_step.grad_norm, seen_.grad_norm);
      EXPECT_GT(seen_.grad_norm, 0.0);
    }

   private:
    StepResult seen_;
  };
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  run.trainer().add_callback(std::make_unique<Watcher>());
  run.run();
  EXPECT_EQ(run.records.size(), 4U);
}

TEST(Callbacks, OnlyAPreUpdateCallbackMakesAStepWaitForItsNumbers) {
  class Watcher : public PreUpdateCallback {
   public:
    std::string_view name() const override { return "watcher"; }
    void pre_update(Trainer&) override {}
  };
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  run.run(1);
  EXPECT_FALSE(run.trainer().train_step->on_pre_update) << "no built-in callback needs them";
  TestRun watched(two_epochs(folder) +
                  Strings{"checkpoint.resume=false", format("run_dir={}", (folder / "other").string())});
  watched.trainer().add_callback(std::make_unique<Watcher>());
  watched.run(1);
  EXPECT_TRUE(watched.trainer().train_step->on_pre_update);
}

TEST(Callbacks, SeeABackgroundSaveOnceItIsPublished) {
  class Watcher : public Callback {
   public:
    explicit Watcher(std::vector<int64_t>& saved) : saved_(saved) {}
    std::string_view name() const override { return "watcher"; }
    void save(Trainer& trainer, const std::filesystem::path& step) override {
      EXPECT_EQ(step, trainer.checkpoint_dir() / format("step-{}", trainer.last_save.step));
      EXPECT_TRUE(std::filesystem::exists(step / "manifest.json")) << step;
      EXPECT_EQ(trainer.last_saved_step, trainer.last_save.step);
      saved_.push_back(trainer.last_save.step);
    }

   private:
    std::vector<int64_t>& saved_;
  };
  const TempFolder folder;
  TestRun run(two_epochs(folder) + Strings{"checkpoint.async=true", "checkpoint.interval=1"});
  std::vector<int64_t> saved;
  run.trainer().add_callback(std::make_unique<Watcher>(saved));
  run.run();
  EXPECT_EQ(saved, (std::vector<int64_t>{1, 2, 3, 4}));
}

Strings names_of(const Config& config) {
  Strings names;
  for (const auto& callback : make_callbacks(config)) names.emplace_back(callback->name());
  return names;
}

TEST(Callbacks, OfTheConfigurationAreRemovedAndReordered) {
  const auto configured = [](const Strings& settings) {
    return load_config(std::nullopt, Strings{"preset=debug"} + settings).config;
  };
  EXPECT_EQ(names_of(configured({})), (Strings{"report", "alarms", "logging"}));
  EXPECT_EQ(names_of(configured({"training.callbacks=[\"logging\", \"report\"]"})),
            (Strings{"logging", "report"}));
  EXPECT_EQ(names_of(configured({"training.callbacks=[\"logging\", \"all\"]", "sampling.freq=3"})),
            (Strings{"logging", "report", "alarms", "sampling"}));
  EXPECT_EQ(names_of(configured({"training.callbacks=[]"})), Strings{});
  EXPECT_CONTAINS(message_of<UsageError>([&] {
                    names_of(configured({"training.callbacks=[\"all\", \"report\", \"report\"]"}));
                  }),
                  "names \"report\" twice");
  EXPECT_CONTAINS(message_of<UsageError>([&] { configured({"training.callbacks=[\"loging\"]"}); }),
                  "\"loging\"", "did you mean \"logging\"?");
}

/// Adds the step's number to the log.
class AddToLog : public Callback {
 public:
  std::string_view name() const override { return "add_to_log"; }
  void log(Trainer& trainer, MetricsRecord& record) override {
    EXPECT_TRUE(record.find(metric::loss).has_value()) << "logging came first";
    record.add("own_number", static_cast<double>(trainer.state.step));
  }
};

TEST(Callbacks, OfAPluginAreMadeByNameAndReplaceABuiltInOne) {
  const auto registry = std::make_shared<Registry>();
  registry->add(CallbackKind{"add_to_log", [](const Config&) { return std::make_unique<AddToLog>(); }});
  const auto configured = [&](const std::string& list) {
    return load_config(std::nullopt, Strings{"preset=debug", "training.callbacks=" + list},
                       ConfigUse::inspect, {}, registry)
        .config;
  };
  EXPECT_EQ(names_of(configured("[\"all\"]")), (Strings{"report", "alarms", "logging", "add_to_log"}));
  EXPECT_EQ(names_of(configured("[\"add_to_log\", \"logging\"]")), (Strings{"add_to_log", "logging"}));
}

TEST(Callbacks, WhatTheyAddToTheLogIsWrittenWithIt) {
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  run.trainer().add_callback(std::make_unique<AddToLog>());
  run.run();
  const auto records = read_jsonl(folder / "run" / "metrics.jsonl");
  const auto last =
      std::ranges::find_if(records, [](const MetricsRecord& record) { return record.step == 4; });
  ASSERT_NE(last, records.end());
  EXPECT_EQ(last->find("own_number"), 4.0);
}

TEST(Callbacks, LearnWhereTheExportIs) {
  class Watcher : public Callback {
   public:
    explicit Watcher(Strings& events) : events_(events) {}
    std::string_view name() const override { return "watcher"; }
    void exported(Trainer&, const std::filesystem::path& folder) override {
      EXPECT_TRUE(std::filesystem::exists(folder / "config.json"));
      events_.push_back(folder.filename().string());
    }
    void export_failed(Trainer&, const std::string& reason) override {
      events_.push_back("failed: " + reason);
    }

   private:
    Strings& events_;
  };
  const TempFolder folder;
  const auto events_with = [&](const std::string& name,
                               const std::function<void(const std::filesystem::path&)>& prepare) {
    Strings events;
    const std::filesystem::path run_dir = folder / name;
    TestRun run(two_epochs(folder) +
                Strings{"run_dir=" + run_dir.string(), "checkpoint.last_save_in_hf=true"});
    run.trainer().add_callback(std::make_unique<Watcher>(events));
    run.build();
    prepare(run_dir);
    try {
      run.trainer().run();
    } catch (const std::exception&) {
      events.emplace_back("the run ended");
    }
    return events;
  };
  EXPECT_EQ(events_with("good", [](const auto&) {}), Strings{"step-4"});
  const Strings failed =
      events_with("bad", [](const auto& run_dir) { write_text(run_dir / "hf", "not a folder"); });
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_TRUE(failed[0].starts_with("failed: ")) << failed[0];
  EXPECT_EQ(failed[1], "the run ended");
}

/// Counts its steps, also those of earlier starts.
class Counter : public Callback {
 public:
  explicit Counter(std::vector<Json>* restored = nullptr) : restored_(restored) {}
  std::string_view name() const override { return "counter"; }
  void step_end(Trainer&) override { ++steps_; }
  Json state(Trainer& trainer) override { return {{"steps", steps_}, {"rank", trainer.place.rank}}; }
  void restore(Trainer&, const std::vector<Json>& of_ranks) override {
    steps_ = of_ranks.at(0).at("steps");
    if (restored_ != nullptr) *restored_ = of_ranks;
  }
  void load(Trainer& trainer) override {
    EXPECT_EQ(steps_, trainer.state.step) << "restore comes before load";
  }

 private:
  int64_t steps_ = 0;
  std::vector<Json>* restored_;
};

TEST(Callbacks, StoreStateOfEachRankThatAnyNumberOfRanksGets) {
  const TempFolder folder;
  const Strings args = two_epochs(folder) + Strings{"training.local_batch_size=1"};
  RankThreads two(2);
  two.run([&](int) { return args; },
          [](TestRun& run, int) { run.trainer().add_callback(std::make_unique<Counter>()); }, 3);
  EXPECT_EQ(two.failures, (Strings{"", ""}));
  std::vector<Json> restored;
  TestRun one(args);
  one.trainer().add_callback(std::make_unique<Counter>(&restored));
  one.build();
  ASSERT_EQ(restored.size(), 2U);
  EXPECT_EQ(restored[0], Json({{"steps", 3}, {"rank", 0}}));
  EXPECT_EQ(restored[1], Json({{"steps", 3}, {"rank", 1}}));
}

TEST(Report, SaysHowProductsGoAndWhenBf16IsFaster) {
  const bool tiles = cpu::bf16_blocks() == cpu::Bf16Blocks::tiles;
  for (const bool narrow : {false, true}) {
    const TempFolder folder;
    TestRun run(job(folder, "run", {format("precision.compute={}", narrow ? "bf16" : "fp32")}));
    run.build();
    const std::string log = run.log_text();
    EXPECT_CONTAINS(log, narrow ? "products: bf16 " : "products: fp32 by ");
    EXPECT_EQ(contains(log, "bf16 by AMX tiles"), narrow && tiles);
    EXPECT_EQ(contains(log, "precision.compute=bf16 is faster"), !narrow && tiles);
  }
}

TEST(Callbacks, AStateThatNoCallbackTakesIsReported) {
  const TempFolder folder;
  {
    TestRun first(two_epochs(folder));
    first.trainer().add_callback(std::make_unique<Counter>());
    first.run(3);
  }
  TestRun second(two_epochs(folder));
  second.build();
  EXPECT_CONTAINS(second.log_text(), "the state of a callback \"counter\", which this run does not have");
}

TEST(Callbacks, WithAStateHaveDifferentNames) {
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  for (int i = 0; i < 2; ++i) run.trainer().add_callback(std::make_unique<Counter>());
  run.build();
  EXPECT_CONTAINS(message_of<Error>([&] { run.trainer().run(); }), "two callbacks with a state",
                  "\"counter\"");
}

TEST(Callbacks, OfTheTrainerCanBeReplaced) {
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  run.trainer().callbacks = CallbackList();
  run.run();
  EXPECT_EQ(read_file(folder / "run" / "metrics.jsonl"), "") << "the built-in logging callback still ran";
}

TEST(BuildSteps, HaveTheDocumentedNamesAndOrder) {
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  Strings names;
  for (const auto& step : run.trainer().build_steps()) names.push_back(step.name);
  const Strings documented = {
      "ranks",     "run_folder",   "threads",  "device",     "tokenizer",   "data",        "job",
      "steps",     "step_program", "groups",   "teacher",    "reference",   "parameters",  "model",
      "optimizer", "loader",       "executor", "checkpoint", "preferences", "answer_ends", "metrics"};
  EXPECT_EQ(names, documented);
}

TEST(BuildSteps, AReplacedLoaderFeedsTheRun) {
  class SameRows : public Loader {
   public:
    using Loader::Loader;
    Batch next() override {
      Loader::next();
      return stream_->rows(0, layout_.rows_per_micro_batch);
    }
  };
  const TempFolder folder;
  TestRun run(two_epochs(folder) + Strings{"optimizer.lr=0.0"});
  run.trainer().replace_build_step("loader", [](Trainer& trainer) {
    trainer.loader = std::make_unique<SameRows>(trainer.data.train, trainer.job.batch);
  });
  run.run();
  ASSERT_EQ(run.records.size(), 4U);
  EXPECT_EQ(run.records[1].loss, run.records[0].loss);
  EXPECT_EQ(run.records[3].loss, run.records[0].loss);
}

TEST(BuildSteps, AReplacedOptimizerUpdates) {
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  std::string initial;
  run.trainer().replace_build_step("optimizer", [&](Trainer& trainer) {
    OptimizerConfig frozen = trainer.config.optimizer;
    frozen.lr = 0.0;
    trainer.optimizer =
        std::make_unique<Optimizer>(*trainer.store, resolve_param_groups(frozen, trainer.job.whole));
    trainer.schedule =
        std::make_unique<LearningRateSchedule>(trainer.config.lr_scheduler, trainer.total_steps);
  });
  Trainer& trainer = run.build();
  const at::Tensor before = trainer.store->unit(1).master().clone();
  trainer.run();
  EXPECT_TRUE(at::equal(trainer.store->unit(1).master(), before));
  EXPECT_EQ(trainer.optimizer->steps(), 4);
}

TEST(BuildSteps, AnUnknownNameIsAnErrorThatListsTheNames) {
  const TempFolder folder;
  TestRun run(two_epochs(folder));
  const std::string message =
      message_of<Error>([&] { run.trainer().replace_build_step("optimiser", [](Trainer&) {}); });
  EXPECT_CONTAINS(message, "\"optimiser\"");
  EXPECT_CONTAINS(message, "optimizer, loader");
}

}  // namespace
}  // namespace stepforge::testing
