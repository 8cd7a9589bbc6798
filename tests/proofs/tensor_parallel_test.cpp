// SPDX-License-Identifier: Apache-2.0
// With tensor parallelism, training and checkpoints are those of one rank.
#include "stepforge/checkpoint/native.h"
#include "stepforge/tensorfile/tensor_folder.h"
#include "tests/proofs/exact_choices.h"
#include "tests/proofs/exact_model.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

struct TensorCase {
  int ranks;
  int tensor;
  int replicas;
  Strings more;
};

Strings overrides_of(const TensorCase& layout) {
  return layout.more + Strings{format("parallelism.tensor_parallel_degree={}", layout.tensor),
                               format("parallelism.data_parallel_replicate_degree={}", layout.replicas)};
}

/// Twelve heads of 6; rows for 1, 2, 3 and 4 data ranks.
Strings divided_job(const std::filesystem::path& run_dir, const std::string& family, int64_t steps) {
  return odd_job(
      run_dir, family, steps,
      {"model.n_heads=12", "model.n_kv_heads=12", "model.head_dim=6", "training.global_batch_size=12"});
}

/// The bytes of every tensor of the last checkpoint: masters and moments, whole.
std::map<std::string, std::string> saved_tensors(const std::filesystem::path& run_dir, int64_t step) {
  const TensorFolder folder = checkpoint_tensors(checkpoint_of_step(run_dir / "checkpoint", step));
  std::map<std::string, std::string> tensors;
  for (const std::string& name : folder.names()) {
    const TensorSlice whole = whole_slice(folder.find(name)->shape);
    std::string bytes(static_cast<size_t>(whole.elements()) * sizeof(float), ' ');
    folder.read(name, whole, std::as_writable_bytes(std::span(bytes)));
    tensors[name] = bytes;
  }
  return tensors;
}

void expect_same_tensors(const std::map<std::string, std::string>& actual,
                         const std::map<std::string, std::string>& expected, const std::string& name) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  for (const auto& [tensor, bytes] : expected)
    EXPECT_TRUE(actual.contains(tensor) && actual.at(tensor) == bytes) << tensor << ": " << name;
}

void expect_same_steps(const std::vector<Records>& ranks, const Records& one, const std::string& name) {
  for (const Records& records : ranks) {
    ASSERT_EQ(records.size(), one.size()) << name;
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_EQ(records[step].loss, one[step].loss) << name << ", step " << step;
      EXPECT_EQ(records[step].grad_norm, one[step].grad_norm) << name << ", step " << step;
    }
  }
}

class TensorParallelTraining : public ::testing::TestWithParam<const char*> {};

const Strings kNoCheckpoint{"checkpoint.enable=false"};
const Strings kRecomputed{"activation_checkpoint.mode=full", "model.dropout=0.1"};
const Strings kRegions{"activation_checkpoint.mode=regions", "activation_checkpoint.regions=[\"attention\"]"};
const Strings kByDim{"parallelism.fsdp_partition=by_dim", "parallelism.fsdp_reduce_each_micro_batch=true"};
const Strings kOffloaded{"parallelism.fsdp_cpu_offload=true", "parallelism.fsdp_partition=by_tensor"};

TEST_P(TensorParallelTraining, LossesAndNormsAreThoseOfOneRank) {
  const TempFolder folder;
  const std::vector<TensorCase> layouts = {
      {2, 2, 1, {}}, {3, 3, 1, kRegions},   {4, 4, 1, kRecomputed}, {4, 2, 1, kByDim},
      {4, 2, 2, {}}, {6, 3, 1, kOffloaded}, {8, 2, 2, kRecomputed}, {8, 2, 4, {}}};
  for (const TensorCase& layout : layouts) {
    const std::string name = format("{} ranks, {}", layout.ranks, join(overrides_of(layout), " "));
    const Strings common = kNoCheckpoint + layout.more;
    const Records one = TestRun(divided_job(folder / "one", GetParam(), 20) + common).run();
    const Strings args = divided_job(folder / "many", GetParam(), 20) + kNoCheckpoint + overrides_of(layout);
    const auto many = RankThreads(layout.ranks).run(args);
    ASSERT_EQ(one.size(), 20U);
    for (const Records& records : many) {
      ASSERT_EQ(records.size(), one.size()) << name;
      for (size_t step = 0; step < one.size(); ++step) {
        EXPECT_NEAR(records[step].loss, one[step].loss, 1e-5) << name << ", step " << step;
        EXPECT_NEAR(records[step].grad_norm, one[step].grad_norm, 1e-4 * one[step].grad_norm) << name;
        EXPECT_EQ(records[step].loss, many[0][step].loss) << name;
        EXPECT_EQ(records[step].grad_norm, many[0][step].grad_norm) << name;
        EXPECT_EQ(records[step].tokens_seen, one[step].tokens_seen) << name;
      }
    }
    std::filesystem::remove_all(folder / "one");
    std::filesystem::remove_all(folder / "many");
  }
}

TEST_P(TensorParallelTraining, InBf16LossesStayWithinItsPrecision) {
  const TempFolder folder;
  const Strings bf16 = kNoCheckpoint + Strings{"precision.compute=bf16"};
  const Records one = TestRun(divided_job(folder / "one", GetParam(), 20) + bf16).run();
  const auto many =
      RankThreads(4).run(divided_job(folder / "many", GetParam(), 20) + bf16 + overrides_of({4, 2, 1, {}}));
  for (size_t step = 0; step < one.size(); ++step) {
    EXPECT_NEAR(many[0][step].loss, one[step].loss, 0.02) << step;
    for (const Records& records : many) EXPECT_EQ(records[step].loss, many[0][step].loss) << step;
  }
}

TEST_P(TensorParallelTraining, OrderedModeGivesTheBitsOfOneDataRankOfTheSameDegree) {
  const TempFolder folder;
  const Strings ordered{"training.reduction=ordered", "training.global_batch_size=8", "model.dropout=0.1"};
  const auto run = [&](const char* name, int ranks, int replicas) {
    return RankThreads(ranks).run(divided_job(folder / name, GetParam(), 4) + ordered +
                                  overrides_of({ranks, 2, replicas, {}}));
  };
  const auto one = run("one", 2, 1);
  const auto expected = saved_tensors(folder / "one", 4);
  const auto compare = [&](const char* name, int ranks, int replicas) {
    expect_same_steps(run(name, ranks, replicas), one[0], name);
    expect_same_tensors(saved_tensors(folder / name, 4), expected, name);
  };
  compare("sharded", 4, 1);
  compare("replicated", 4, 2);
  compare("both", 8, 2);
}

TEST_P(TensorParallelTraining, AValueThatIsNotFiniteStopsAllRanksAndIsNamed) {
  const TempFolder folder;
  const Strings args = divided_job(folder / "run", GetParam(), 4) + overrides_of({4, 2, 1, {}}) +
                       Strings{"debug.plant_nan_step=2", "debug.plant_nan_block=layers.1"};
  RankThreads threads(4);
  threads.run([&](int) { return args; });
  for (const std::string& failure : threads.failures)
    EXPECT_CONTAINS(failure, "first not finite in block layers.1 (output) on rank 0");
}

TEST_P(TensorParallelTraining, AFailingRankEndsTheOthers) {
  const TempFolder folder;
  RankThreads threads(4);
  const auto fail = [](TestRun& run, int rank) {
    if (rank != 3) return;
    run.trainer().add_callback(std::make_unique<CallAt>([](Trainer&) { throw Error("planted failure"); }));
  };
  threads.run(
      [&](int) {
        return divided_job(folder / "run", GetParam(), 4) + overrides_of({4, 4, 1, {}});
      },
      fail);
  for (const std::string& failure : threads.failures) EXPECT_CONTAINS(failure, "planted failure");
}

INSTANTIATE_TEST_SUITE_P(Families, TensorParallelTraining, ::testing::Values("llama", "qwen3"),
                         [](const auto& family) { return std::string(family.param); });

class ExactTensorParallel : public ::testing::TestWithParam<ExactModel> {
 protected:
  Records run_one(const std::filesystem::path& run_dir) const {
    TestRun run(exact_job(run_dir) + Strings{"checkpoint.enable=true"});
    use_exact_model(run, GetParam());
    return run.run();
  }
  std::vector<Records> run_many(int ranks, const Strings& args, std::optional<int64_t> last = {}) const {
    RankThreads threads(ranks);
    const auto records = threads.run([&](int) { return args; },
                                     [&](TestRun& run, int) { use_exact_model(run, GetParam()); }, last);
    for (const auto& failure : threads.failures) EXPECT_EQ(failure, "") << join(args, " ");
    return records;
  }
};

TEST_P(ExactTensorParallel, EveryLayoutGivesTheBitsOfOneRank) {
  const TempFolder folder;
  const Records one = run_one(folder / "one");
  const auto expected = saved_tensors(folder / "one", 10);
  const std::vector<TensorCase> layouts = {{2, 2, 1, {}}, {3, 3, 1, {}}, {4, 4, 1, {}}, {4, 2, 1, {}},
                                           {4, 2, 2, {}}, {6, 3, 1, {}}, {8, 8, 1, {}}, {8, 4, 2, {}},
                                           {8, 2, 2, {}}, {8, 2, 4, {}}};
  for (const TensorCase& layout : layouts) {
    const int key = layout.ranks * 100 + layout.tensor * 10 + layout.replicas;
    for (const Strings& choice : exact_choices(layout.ranks / layout.tensor, key, long_tests() ? 60 : 2)) {
      const Strings args = choice + overrides_of(layout);
      const std::string name = format("{} ranks, {}", layout.ranks, join(args, " "));
      const Strings job = exact_job(folder / "many") + Strings{"checkpoint.enable=true"} + args;
      expect_same_steps(run_many(layout.ranks, job), one, name);
      expect_same_tensors(saved_tensors(folder / "many", 10), expected, name);
      std::filesystem::remove_all(folder / "many");
    }
  }
}

TEST_P(ExactTensorParallel, ARunMovesBetweenLayoutsByResume) {
  const TempFolder folder;
  run_one(folder / "one");
  const std::vector<TensorCase> layouts = {
      {2, 2, 1, {}}, {4, 1, 2, {}}, {6, 3, 2, {}}, {1, 1, 1, {}}, {8, 4, 1, {}}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Strings job =
        exact_job(folder / "many") + Strings{"checkpoint.enable=true"} + overrides_of(layouts[i]);
    run_many(layouts[i].ranks, job, static_cast<int64_t>(2 * i + 2));
  }
  expect_same_tensors(saved_tensors(folder / "many", 10), saved_tensors(folder / "one", 10), "moved");
}

INSTANTIATE_TEST_SUITE_P(Models, ExactTensorParallel,
                         ::testing::Values(ExactModel::plain, ExactModel::shared), [](const auto& model) {
                           return model.param == ExactModel::plain ? "plain" : "shared";
                         });

}  // namespace
}  // namespace stepforge::testing
