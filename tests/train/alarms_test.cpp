// SPDX-License-Identifier: Apache-2.0
// Checks between ranks while they train.
#include "stepforge/train/alarms.h"

#include <utility>

#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// A job whose last rank changes the first element of a parameter that it has. Returns the errors of all ranks.
std::vector<std::string> failures_of_changed_copy(int ranks, const Strings& layout,
                                                  const std::string& parameter) {
  const TempFolder folder;
  const auto change = [&](Trainer& trainer) {
    if (trainer.state.step != 1) return;
    for (size_t u = 0; u < trainer.store->size(); ++u) {
      const UnitStore& unit = trainer.store->unit(u);
      for (size_t p = 0; p < unit.spec().parameters.size(); ++p) {
        if (unit.spec().parameters[p].name != parameter) continue;
        unit.master().mutable_data_ptr<float>()[unit.local_range(p, p + 1).begin] += 1e-6F;
      }
    }
  };
  RankThreads threads(ranks);
  threads.run([&](int) { return job(folder, "run", Strings{"debug.check_copies_freq=1"} + layout); },
              [&](TestRun& run, int rank) {
                if (rank == ranks - 1) run.trainer().add_callback(std::make_unique<CallAt>(change));
              });
  return threads.failures;
}

TEST(Alarms, FindAndNameAReplicaWhoseWeightsDiffer) {
  const auto failures = failures_of_changed_copy(
      4, {"parallelism.data_parallel_replicate_degree=2", "parallelism.fsdp_partition=by_dim"},
      "layers.1.mlp.down");
  for (const std::string& failure : failures)
    EXPECT_CONTAINS(failure,
                    "step 2: the weights of layers.1 differ between rank 1 and rank 3, which hold replicas");
}

TEST(Alarms, FindAndNameACopyOfATensorThatIsNotDivided) {
  const auto failures = failures_of_changed_copy(
      2, {"parallelism.tensor_parallel_degree=2", "model.n_kv_heads=2"}, "layers.0.mlp.norm");
  for (const std::string& failure : failures)
    EXPECT_CONTAINS(failure,
                    "step 2: the weights of layers.0 differ between rank 0 and rank 1, which hold copies of");
}

TEST(Alarms, AreSilentInEveryLayoutThatIsRight) {
  const std::vector<std::pair<int, Strings>> layouts = {
      {4, {"parallelism.data_parallel_replicate_degree=2", "training.norm_type=inf"}},
      {4,
       {"parallelism.tensor_parallel_degree=2", "parallelism.fsdp_partition=by_tensor", "model.ffn_dim=51"}},
      {4,
       {"parallelism.tensor_parallel_degree=2", "parallelism.data_parallel_replicate_degree=2",
        "parallelism.enable_sequence_parallel=false"}},
      {4,
       {"parallelism.tensor_parallel_degree=2", "parallelism.expert_parallel_degree=2",
        "model.family=qwen3_moe", "model.n_experts=4", "model.experts_per_token=2"}},
      {4,
       {"parallelism.context_parallel_degree=2", "training.norm_type=l1",
        "parallelism.fsdp_cpu_offload=true"}}};
  for (const auto& [ranks, layout] : layouts) {
    const TempFolder folder;
    RankThreads(ranks).run(
        job(folder, "run", Strings{"debug.check_copies_freq=1", "model.n_kv_heads=2"} + layout));
  }
}

/// As if the norm had counted every element twice.
TEST(Alarms, FindANormThatIsNotThatOfAllShards) {
  const TempFolder folder;
  RankThreads threads(2);
  threads.run([&](int) { return job(folder, "run"); },
              [](TestRun& run, int) {
                run.trainer().add_callback(std::make_unique<CallAtStart>(
                    [](Trainer& trainer) { trainer.job.layout.dims.dp_replicate = 2; }));
              });
  for (const std::string& failure : threads.failures)
    EXPECT_CONTAINS(failure, "step 1: the gradient norm is", "but the shards of all 2 ranks together have",
                    "counted twice or not at all");
}

}  // namespace
}  // namespace stepforge::testing
