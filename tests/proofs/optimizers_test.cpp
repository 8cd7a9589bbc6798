// SPDX-License-Identifier: Apache-2.0
// Every optimizer trains, saves and resumes alike in every layout.
#include <cmath>
#include <cstring>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include "tests/catalog/all_families.h"
#include "tests/proofs/compare_runs.h"
#include "tests/proofs/odd_job.h"

namespace stepforge::testing {
namespace {

class Optimizers : public ::testing::TestWithParam<const char*> {
 protected:
  Strings job(const std::string& name, int64_t steps, const Strings& more = {}) const {
    return odd_job(folder_ / name, "llama", steps,
                   {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6", "model.tie_embeddings=false",
                    "training.global_batch_size=8", format("optimizer.name={}", GetParam()),
                    "optimizer.lr=1e-3"}) +
           (is_muon() ? Strings{"optimizer.muon_compute=fp32"} : Strings{}) + more;
  }
  bool is_muon() const { return std::string_view(GetParam()) == "muon"; }

  TempFolder folder_;
};

TEST_P(Optimizers, LossesAreThoseOfOneRankInEveryLayout) {
  const Strings by_tensor{"parallelism.fsdp_partition=by_tensor"};
  const Records one = TestRun(job("one", 10) + kNoCheckpoint).run();
  std::vector<std::pair<int, Strings>> layouts = {
      {2, by_tensor},
      {4, by_tensor + Strings{"parallelism.data_parallel_replicate_degree=2"}},
      {2, by_tensor + Strings{"parallelism.fsdp_cpu_offload=true"}},
      {2, Strings{"parallelism.pipeline_parallel_degree=2"}}};
  if (!is_muon()) layouts.push_back({4, Strings{"parallelism.tensor_parallel_degree=2"} + kAllTokens});
  for (const auto& [ranks, more] : layouts) {
    RankThreads threads(ranks);
    const auto many = threads.run(job("many", 10) + kNoCheckpoint + more);
    for (const std::string& failure : threads.failures) ASSERT_EQ(failure, "") << join(more, " ");
    for (const Records& records : many)
      for (size_t step = 0; step < one.size(); ++step)
        EXPECT_NEAR(records.at(step).loss, one[step].loss, 1e-5) << join(more, " ") << ", step " << step;
  }
}

TEST_P(Optimizers, ARunThatMovesBetweenLayoutsHasTheBitsOfOneRank) {
  const Strings ordered{"training.reduction=ordered", "checkpoint.enable=true"};
  const Records one = TestRun(job("one", 6) + ordered).run();
  const Strings replicated{"parallelism.data_parallel_replicate_degree=2"};
  const Strings piped{"parallelism.pipeline_parallel_degree=2"};
  RankThreads(2).run([&](int) { return job("many", 6) + ordered + replicated; }, {}, 2);
  RankThreads(2).run([&](int) { return job("many", 6) + ordered + piped; }, {}, 4);
  TestRun last(job("many", 6) + ordered);
  const Records end = last.run();
  EXPECT_EQ(end.back().loss, one.back().loss);
  expect_same_tensors(saved_tensors(folder_ / "many", 6), saved_tensors(folder_ / "one", 6), GetParam());
}

TEST_P(Optimizers, ShardedStateMovesToOneRank) {
  const Strings by_tensor{"parallelism.fsdp_partition=by_tensor", "checkpoint.enable=true"};
  RankThreads(3).run([&](int) { return job("many", 4, {"training.global_batch_size=9"}) + by_tensor; }, {},
                     2);
  const auto two = saved_tensors(folder_ / "many", 2);
  const bool has_momentum =
      std::ranges::any_of(two, [](const auto& tensor) { return tensor.first.ends_with(".momentum_buffer"); });
  EXPECT_EQ(has_momentum, is_muon() || std::string_view(GetParam()) == "sgd");
  TestRun one(job("many", 4, {"training.global_batch_size=9"}) + Strings{"checkpoint.enable=true"});
  EXPECT_EQ(one.run().size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers, ::testing::Values("adamw", "adamw_bf16", "lion", "sgd", "muon"),
                         [](const auto& name) { return name.param; });

/// With matrices whose rows are one and two blocks long, and norms and an embedding that keep fp32 moments.
class EightBitMoments : public ::testing::Test {
 protected:
  Strings job(const std::string& name, const std::string& optimizer, int64_t steps,
              const Strings& more = {}) const {
    return odd_job(folder_ / name, "llama", steps,
                   {"model.dim=256", "model.ffn_dim=512", "model.n_layers=2", "model.n_heads=8",
                    "model.n_kv_heads=2", "model.head_dim=32", "model.tie_embeddings=false",
                    "training.global_batch_size=8", "optimizer.name=" + optimizer, "optimizer.lr=1e-3"}) +
           more;
  }

  TempFolder folder_;
};

TEST_F(EightBitMoments, HaveTheBitsOfOneRankInEveryLayoutAndWhenTheRunMoves) {
  const Strings ordered{"training.reduction=ordered", "checkpoint.enable=true", "checkpoint.interval=2"};
  const Records one = TestRun(job("one", "adamw_8bit", 4) + ordered).run();
  const auto expected = saved_tensors(folder_ / "one", 4);
  const std::string moment = "optim.state.model.layers.0.mlp.gate_proj.weight.exp_avg";
  EXPECT_EQ(expected.at(moment).size(), 512U * 256) << "a byte for each element";
  EXPECT_EQ(expected.at(moment + "_scale").size(), 4U * 512) << "a scale for each row of 256";
  EXPECT_EQ(expected.at("optim.state.model.norm.weight.exp_avg").size(), 4U * 256);
  const std::vector<std::pair<int, Strings>> layouts = {{2, {}},
                                                        {2, {"parallelism.data_parallel_replicate_degree=2"}},
                                                        {4, {"parallelism.data_parallel_replicate_degree=2"}},
                                                        {2, {"parallelism.fsdp_cpu_offload=true"}},
                                                        {2, {"parallelism.pipeline_parallel_degree=2"}}};
  for (const auto& [ranks, more] : layouts) {
    const std::string name = format("{} ranks, {}", ranks, join(more, " "));
    RankThreads first(ranks);
    first.run([&, &more = more](int) { return job("many", "adamw_8bit", 4) + ordered + more; }, {}, 2);
    for (const std::string& failure : first.failures) ASSERT_EQ(failure, "") << name;
    EXPECT_EQ(TestRun(job("many", "adamw_8bit", 4) + ordered).run().back().loss, one.back().loss) << name;
    expect_same_tensors(saved_tensors(folder_ / "many", 4), expected, name);
    std::filesystem::remove_all(folder_ / "many");
  }
}

TEST_F(EightBitMoments, MoveFromOtherPartitionsToOneRank) {
  for (const char* partition : {"by_tensor", "by_dim"}) {
    const Strings checkpoints{"checkpoint.enable=true", "checkpoint.interval=2"};
    RankThreads ranks(2);
    ranks.run(
        [&](int) {
          return job(partition, "adamw_8bit", 4) + checkpoints +
                 Strings{std::string("parallelism.fsdp_partition=") + partition};
        },
        {}, 2);
    for (const std::string& failure : ranks.failures) ASSERT_EQ(failure, "") << partition;
    EXPECT_EQ(TestRun(job(partition, "adamw_8bit", 4) + checkpoints).run().size(), 2U) << partition;
  }
}

/// A moment near the border between two of the 256 values may be rounded to either.
TEST_F(EightBitMoments, OfSpreadExpertsAreThoseOfOneRankButForRounding) {
  const Strings experts = Strings{"model.family=qwen3_moe"} +
                          setting_overrides("qwen3_moe", /*windows=*/false) +
                          Strings{"model.moe_ffn_dim=256", "checkpoint.enable=true"};
  const Records one = TestRun(job("one", "adamw_8bit", 4, experts)).run();
  const auto expected = saved_tensors(folder_ / "one", 4);
  const auto many = RankThreads(2).run(
      job("many", "adamw_8bit", 4, experts + Strings{"parallelism.expert_parallel_degree=2"}));
  for (size_t step = 0; step < one.size(); ++step)
    EXPECT_NEAR(many[0].at(step).loss, one[step].loss, 1e-3) << step;
  const auto actual = saved_tensors(folder_ / "many", 4);
  int compared = 0;
  for (const auto& [name, bytes] : expected) {
    if (!contains(name, ".mlp.experts.") || !name.ends_with(".exp_avg")) continue;
    ASSERT_EQ(actual.at(name).size(), bytes.size()) << name;
    EXPECT_EQ(bytes.size(), 256U * 256) << "a byte for each element";
    size_t different = 0;
    for (size_t i = 0; i < bytes.size(); ++i) different += actual.at(name)[i] == bytes[i] ? 0 : 1;
    EXPECT_LT(different, bytes.size() / 100) << name;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST_F(EightBitMoments, TrainLikeThoseOfFp32) {
  std::map<std::string, Records> runs;
  for (const char* optimizer : {"adamw", "adamw_bf16", "adamw_8bit"})
    runs[optimizer] = TestRun(job(optimizer, optimizer, 30) + kNoCheckpoint).run();
  EXPECT_LT(runs["adamw"].back().loss, runs["adamw"].front().loss - 0.5);
  for (size_t step = 0; step < runs["adamw"].size(); ++step) {
    EXPECT_NEAR(runs["adamw_bf16"][step].loss, runs["adamw"][step].loss, 0.02) << step;
    EXPECT_NEAR(runs["adamw_8bit"][step].loss, runs["adamw"][step].loss, 0.05) << step;
  }
}

TEST_F(EightBitMoments, RefuseRowsThatTensorParallelismDividesWithinABlock) {
  RankThreads ranks(2);
  ranks.run([&](int) {
    return job("run", "adamw_8bit", 4,
               Strings{"parallelism.tensor_parallel_degree=2"} + kAllTokens + kNoCheckpoint);
  });
  EXPECT_CONTAINS(ranks.failures.at(0), "exp_avg_scale", "256 elements of a row", "attention.out",
                  "another optimizer.name");
}

TEST_F(EightBitMoments, RefuseTheStateOfFp32AndSayWhatItIs) {
  TestRun(job("run", "adamw", 2) + Strings{"checkpoint.enable=true"}).run();
  const std::string message = message_of<Error>([&] { TestRun(job("run", "adamw_bf16", 4)).run(); });
  EXPECT_CONTAINS(message, "its state is exp_avg, exp_avg_sq", "needs exp_avg (bf16), exp_avg_sq (bf16)");
}

TEST(OptimizerChange, AnotherOptimizerRefusesTheStateAndSaysSo) {
  const TempFolder folder;
  const auto job = [&](const std::string& name) {
    return odd_job(
        folder / "run", "llama", 4,
        {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6", "training.global_batch_size=8",
         "optimizer.name=" + name, "checkpoint.enable=true", "checkpoint.interval=2"});
  };
  TestRun(job("lion")).run(2);
  const std::string message = message_of<Error>([&] { TestRun(job("adamw")).run(); });
  EXPECT_CONTAINS(
      message, "is of another optimizer: its state is exp_avg, but optimizer.name needs exp_avg, exp_avg_sq");
}

/// [rows, columns] fp64 of the bytes of an fp32 tensor.
at::Tensor matrix_of(const std::string& bytes, int64_t rows) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return at::from_blob(values.data(), {rows, std::ssize(values) / rows}, at::kFloat).to(at::kDouble);
}

constexpr int64_t kWidth = 37;  ///< of the models of odd_job

/// Newton-Schulz as in the paper, for one matrix.
at::Tensor nearly_orthogonal(const at::Tensor& matrix) {
  at::Tensor x = matrix / matrix.norm();
  if (x.size(0) > x.size(1)) return nearly_orthogonal(matrix.t()).t();
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = at::mm(x, x.t());
    x = 3.4445 * x + at::mm(-4.7750 * a + 2.0315 * at::mm(a, a), x);
  }
  return x;
}

/// The last update, from the weights before it and the momentum after it.
at::Tensor updated_by_muon(const at::Tensor& weight, const at::Tensor& momentum) {
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(weight.size(0), weight.size(1))));
  return weight * (1 - 0.01 * 0.1) - 0.01 * scale * nearly_orthogonal(momentum);
}

constexpr int64_t kExperts = 6;  ///< of setting_overrides

class MuonOfExperts : public ::testing::TestWithParam<const char*> {};

TEST_P(MuonOfExperts, UpdatesTheMatrixOfEachSpreadExpertByItself) {
  const TempFolder folder;
  const Strings args =
      odd_job(folder / "run", GetParam(), 2,
              {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6", "training.global_batch_size=4",
               "optimizer.name=muon", "optimizer.muon_compute=fp32", "optimizer.nesterov=false",
               "optimizer.muon_scale=rms", "optimizer.lr=0.01", "optimizer.weight_decay=0.1",
               "lr_scheduler.warmup_steps=0", "lr_scheduler.min_lr_factor=1.0", "checkpoint.enable=true",
               "parallelism.fsdp_partition=by_tensor", "parallelism.expert_parallel_degree=2"}) +
      setting_overrides(GetParam(), /*windows=*/false);
  RankThreads(2).run(args, 1);
  const auto before = saved_tensors(folder / "run", 1);
  RankThreads(2).run(args, 2);
  const auto after = saved_tensors(folder / "run", 2);
  int compared = 0;
  for (const auto& [name, bytes] : before) {
    if (!name.starts_with("model.") || !contains(name, ".mlp.experts.") || contains(name, "bias")) continue;
    // [outputs, inputs], or those of all experts [experts, inputs, outputs]
    const bool down = contains(name, "down_proj");
    const bool stacked = std::string_view(GetParam()) == "gpt_oss";
    const int64_t matrices = stacked ? kExperts : 1;
    const int64_t hidden = std::ssize(bytes) / 4 / kWidth / matrices;
    const int64_t rows = matrices * (down == stacked ? hidden : kWidth);
    const auto matrices_of = [&](const std::string& values) {
      return matrix_of(values, rows).chunk(matrices);
    };
    const std::vector<at::Tensor> weights = matrices_of(bytes);
    const std::vector<at::Tensor> actual = matrices_of(after.at(name));
    const std::vector<at::Tensor> momenta =
        matrices_of(after.at(format("optim.state.{}.momentum_buffer", name)));
    for (size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor expected = updated_by_muon(weights[i], momenta[i]);
      EXPECT_GT((expected - weights[i]).abs().max().item<double>(), 1e-3) << name;
      EXPECT_LT((actual[i] - expected).abs().max().item<double>(), 1e-5) << name << " " << i;
    }
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, MuonOfExperts, ::testing::Values("qwen3_moe", "gpt_oss"),
                         [](const auto& family) { return std::string(family.param); });

TEST(Muon, RefusesMatricesThatAreDividedAndNamesTheRemedy) {
  const TempFolder folder;
  const auto failure = [&](const Strings& more) {
    RankThreads ranks(2);
    ranks.run([&](int) {
      return odd_job(folder / "run", "llama", 4,
                     {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6",
                      "training.global_batch_size=8", "optimizer.name=muon", "checkpoint.enable=false"}) +
             more;
    });
    return ranks.failures.at(0);
  };
  EXPECT_CONTAINS(failure({}), "set parallelism.fsdp_partition = \"by_tensor\"");
  EXPECT_CONTAINS(failure(Strings{"parallelism.tensor_parallel_degree=2"} + kAllTokens),
                  "but parallelism.tensor_parallel_degree divides layers.0.attention.qkv; set it to 1");
}

}  // namespace
}  // namespace stepforge::testing
