// SPDX-License-Identifier: Apache-2.0
// Several ranks train what one rank trains.
#include "tests/train/ranks.h"

#include <atomic>
#include <cmath>
#include <csignal>
#include <map>

#include "stepforge/base/random.h"
#include "stepforge/comm/recording.h"
#include "stepforge/step/collectives.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

struct Layout {
  int ranks;
  int replicas;
  Strings more;
};

TEST(Ranks, AgreeWithOneRankInEveryPartitionAndReduceDtype) {
  const TempFolder folder;
  const Strings args{"training.global_batch_size=6", "training.steps=10", "model.dropout=0"};
  const Records one = TestRun(job(folder, "one", args)).run();
  for (const std::string partition : {"flat", "by_tensor", "by_dim"}) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      const std::vector<Records> many = RankThreads(3).run(
          job(folder, partition + dtype,
              args + Strings{"parallelism.fsdp_partition=" + partition, "precision.reduce=" + dtype,
                             format("parallelism.fsdp_reduce_each_micro_batch={}", dtype == "bf16")}));
      for (const Records& records : many) {
        ASSERT_EQ(records.size(), one.size());
        for (size_t step = 0; step < one.size(); ++step) {
          EXPECT_NEAR(records[step].loss, one[step].loss, dtype == "fp32" ? 1e-5 : 2e-2)
              << partition << dtype << step;
          EXPECT_EQ(records[step].bits, many[0][step].bits);
        }
      }
    }
  }
}

TEST(Ranks, TogetherReadTheRowsOfOneRank) {
  const TempFolder folder;
  const Records one = TestRun(job(folder, "one")).run();
  const std::vector<Records> many = RankThreads(4).run(job(folder, "many"));
  for (size_t step = 0; step < one.size(); ++step) {
    std::vector<int32_t> tokens;
    for (const Records& records : many) {
      tokens.insert(tokens.end(), records[step].tokens.begin(), records[step].tokens.end());
    }
    EXPECT_EQ(tokens, one[step].tokens);
  }
}

TEST(Ranks, GatherInBf16GivesTheSameBitsOnEachRank) {
  const TempFolder folder;
  const std::vector<Records> many =
      RankThreads(2).run(job(folder, "many", {"precision.compute=bf16", "training.reduction=ordered"}));
  const Records one =
      TestRun(job(folder, "one", {"precision.compute=bf16", "training.reduction=ordered"})).run();
  expect_same_numbers(many, one, "bf16");
}

// Finds what went wrong in torchtitan#3907, #3908 (the second resume restarts the data), AutoModel#3437 (random
// state per rank).
TEST(Ranks, ARunMovesFromOneToTwoToFourToOneRankByResume) {
  const TempFolder folder;
  const Strings args = job(folder, "uncut", {"training.reduction=ordered", "training.steps=8"});
  const Records uncut = TestRun(args).run();
  const Strings moving = job(folder, "moving",
                             {"training.reduction=ordered", "training.steps=8", "checkpoint.enable=true",
                              "checkpoint.interval=100"});
  Records all = TestRun(moving).run(2);
  const auto add = [&all](const Records& records) { all.insert(all.end(), records.begin(), records.end()); };
  add(RankThreads(2).run(moving, 4)[1]);
  add(RankThreads(4).run(moving, 6)[3]);
  add(TestRun(moving).run());
  EXPECT_EQ(numbers(all), numbers(uncut));
}

TEST(Ranks, ValidateToTheResultOfOneRank) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(300));
  const Strings text{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                     "data.document=line", "data.validation_fraction=0.2", "validation.freq=2",
                     "training.reduction=ordered"};
  TestRun alone(job(folder, "one", text));
  alone.run();
  const EvaluationResult expected = alone.trainer().last_validation;
  ASSERT_GT(expected.valid_labels, 0);
  RankThreads ranks(4);
  const auto check = [&](TestRun& run, int) {
    run.trainer().add_callback(std::make_unique<CallAt>([&run, &expected](Trainer& trainer) {
      if (trainer.state.step != 3) return;  // the validation after step 2
      EXPECT_GT(trainer.last_validation.valid_labels, 0);
      EXPECT_EQ(trainer.last_validation.valid_labels, expected.valid_labels);
    }));
  };
  ranks.run([&](int) { return job(folder, "many", text); }, check);
  for (const auto& failure : ranks.failures) EXPECT_EQ(failure, "");
  const auto last_loss = [&](const std::string& name) {
    double loss = 0.0;
    std::ifstream lines(folder / name / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      if (json["kind"] == "validation") loss = json["validation_metrics/global_avg_loss"].get<double>();
    }
    return loss;
  };
  EXPECT_EQ(last_loss("many"), last_loss("one"));
  EXPECT_EQ(last_loss("many"), expected.loss);
}

TEST(Ranks, WriteTheSamplesOfOneRank) {
  const TempFolder folder;
  const Strings sampling{"training.reduction=ordered", "sampling.freq=2", "sampling.prompt=Once",
                         "sampling.max_tokens=12"};
  TestRun(job(folder, "one", sampling)).run();
  RankThreads(2).run(job(folder, "many", sampling));
  const std::string expected = samples_of(folder / "one" / "log.txt");
  EXPECT_NE(expected, "");
  EXPECT_EQ(samples_of(folder / "many" / "log.txt"), expected);
  EXPECT_EQ(samples_of(folder / "many" / "logs" / "rank-1.txt"), expected);
}

TEST(Ranks, DelaysOfCollectivesChangeNoBit) {
  const TempFolder folder;
  const Strings layout{"parallelism.data_parallel_replicate_degree=2", "parallelism.fsdp_forward_prefetch=2",
                       "parallelism.fsdp_backward_prefetch=2", "parallelism.fsdp_reduce_in_flight=2"};
  const Records quick = RankThreads(4).run(job(folder, "quick", layout))[0];
  std::atomic<uint64_t> calls{0};
  const auto rule = [&calls](const CollectiveCall&) {
    const uint64_t drawn = mix_bits(calls++);
    return Delay{static_cast<double>(drawn % 7) * 1e-4, static_cast<double>(drawn / 7 % 5) * 1e-4, 0.0};
  };
  expect_same_numbers(RankThreads(4, rule).run(job(folder, "slow", layout)), quick, "delayed");
  EXPECT_GT(calls, 0U);
}

/// Counts the collectives of the last step.
class CountTraffic : public Callback {
 public:
  explicit CountTraffic(RecordingWorld& world) : world_(world) {}
  std::string_view name() const override { return "count"; }
  void step_begin(Trainer& trainer) override { world_.reset_traffic(); }

 private:
  RecordingWorld& world_;
};

TEST(Ranks, SendExactlyWhatTheirProgramsSay) {
  // The communicator and the collective that serve an operation.
  const std::map<OpKind, std::pair<std::string, CollectiveKind>> served = {
      {OpKind::gather_start, {"fsdp gather from rank 0", CollectiveKind::all_gather}},
      {OpKind::reduce_start, {"fsdp reduce from rank 0", CollectiveKind::reduce_scatter}},
      {OpKind::all_reduce_start, {"dp_replicate reduce from rank 0", CollectiveKind::all_reduce}},
      {OpKind::count_labels, {"loss compute from rank 0", CollectiveKind::all_reduce}},
      {OpKind::reduce_loss, {"loss compute from rank 0", CollectiveKind::all_gather}},
      {OpKind::gradient_norm, {"fsdp compute from rank 0", CollectiveKind::all_gather}},
  };
  const TempFolder folder;
  const std::vector<Layout> layouts = {
      {1, 1, {}},
      {2, 1, {}},
      {2, 1, {"parallelism.fsdp_reduce_each_micro_batch=true"}},
      {4, 2, {"precision.compute=bf16"}},
      {4, 4, {}},
      {8, 2, {"parallelism.fsdp_reshard_after_forward=never", "activation_checkpoint.mode=full"}},
  };
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Layout& layout = layouts[i];
    RecordingWorld world(0, layout.ranks);
    TestRun run(
        job(folder, format("layout-{}", i),
            layout.more + Strings{"training.steps=2",
                                  format("parallelism.data_parallel_replicate_degree={}", layout.replicas)}),
        nullptr, &world);
    // Before the fixture's own callback, which gathers weights to compare them.
    run.trainer().add_callback(std::make_unique<CountTraffic>(world));
    std::vector<Traffic> sent;
    run.trainer().add_callback(std::make_unique<CallAt>([&](Trainer&) { sent = world.traffic(); }));
    run.run();
    std::map<std::pair<std::string, CollectiveKind>, std::pair<int64_t, int64_t>> expected;
    for (const CollectiveTotal& total : collective_totals(run.trainer().train_program)) {
      auto& sum = expected[served.at(total.kind)];
      sum.first += total.count;
      sum.second += total.bytes;
    }
    std::map<std::pair<std::string, CollectiveKind>, std::pair<int64_t, int64_t>> counted;
    for (const Traffic& line : sent) counted[{line.group, line.kind}] = {line.calls, line.bytes};
    EXPECT_EQ(counted, expected) << layout.ranks << " ranks, layout " << i;
  }
}

TEST(Ranks, AFailureOnOneRankEndsAllWithItsMessage) {
  const TempFolder folder;
  RankThreads ranks(4);
  ranks.run([&](int) { return job(folder, "run"); },
            [](TestRun& run, int rank) {
              if (rank != 2) return;
              run.trainer().add_callback(std::make_unique<CallAt>([](Trainer& trainer) {
                if (trainer.state.step == 2) throw Error("disk failure");
              }));
            });
  EXPECT_EQ(ranks.failures[2], "disk failure");
  for (const int rank : {0, 1, 3}) {
    const std::string& failure = ranks.failures[static_cast<size_t>(rank)];
    EXPECT_NE(failure.find("rank 2"), std::string::npos) << failure;
    EXPECT_NE(failure.find("disk failure"), std::string::npos) << failure;
  }
}

TEST(Ranks, WithDifferentConfigurationsAreRefused) {
  const TempFolder folder;
  RankThreads ranks(2);
  ranks.run([&](int rank) {
    return job(folder, "run", {format("optimizer.lr={}", rank == 0 ? "0.001" : "0.002")});
  });
  for (const auto& failure : ranks.failures) {
    EXPECT_NE(failure.find("the configuration of rank 1 differs from that of rank 0"), std::string::npos)
        << failure;
    EXPECT_NE(failure.find("optimizer.lr = 0.002 instead of 0.001"), std::string::npos) << failure;
  }
}

TEST(Ranks, ANanOnOneRankStopsAllBeforeTheUpdate) {
  const TempFolder folder;
  RankThreads ranks(2);
  ranks.run([&](int) { return job(folder, "run"); },
            [](TestRun& run, int rank) {
              if (rank != 1) return;
              run.trainer().add_callback(std::make_unique<CallAt>([](Trainer& trainer) {
                trainer.config.debug.plant_nan_step = 2;
                trainer.config.debug.plant_nan_block = "layers.1";
              }));
            });
  for (const auto& failure : ranks.failures) {
    EXPECT_NE(failure.find("layers.1"), std::string::npos) << failure;
    EXPECT_NE(failure.find("on rank 1"), std::string::npos) << failure;
  }
}

TEST(Ranks, AllStopAfterTheSameStepIfOneIsInterrupted) {
  const Strings tensor{"parallelism.tensor_parallel_degree=2", "model.n_kv_heads=2"};
  for (const Strings& layout : {Strings{}, tensor}) {
    const TempFolder folder;
    const auto steps = run_processes(2, [&](World& world) {
      std::optional<InterruptWatcher> interrupts;
      if (world.rank() == 1) interrupts.emplace([](int) {});
      TestRun run(job(folder, "run", layout), interrupts ? &*interrupts : nullptr, &world);
      run.trainer().add_callback(std::make_unique<CallAt>([&](Trainer& trainer) {
        if (!interrupts || trainer.state.step != 2) return;
        kill(getpid(), SIGINT);
        while (!interrupts->requested()) usleep(1000);
      }));
      run.run();
      return format("{}", run.records.size());
    });
    EXPECT_EQ(steps, (std::vector<std::string>{"3", "3"})) << join(layout, " ");
  }
}

TEST(Ranks, EachHasItsLogFile) {
  const TempFolder folder;
  RankThreads(2).run(job(folder, "run", {"training.steps=1"}));
  EXPECT_TRUE(std::filesystem::exists(folder / "run" / "log.txt"));
  EXPECT_NE(read_file(folder / "run" / "logs" / "rank-1.txt").find("step: 1"), std::string::npos);
}

}  // namespace
}  // namespace stepforge::testing
