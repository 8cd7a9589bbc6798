// SPDX-License-Identifier: Apache-2.0
// Exact models on up to 8 simulated devices, and on one device that all ranks share, train as one rank does: losses, norms, and
// the weights and moments of the checkpoints.
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/config/load.h"
#include "stepforge/prove/prove_layout.h"
#include "stepforge/sim/machine.h"
#include "tests/support/long_tests.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

struct ProvedLayout {
  int ranks;
  Strings options;
};

const Strings kExperts{"model.family=qwen3_moe", "model.n_experts=8", "model.experts_per_token=2"};

std::vector<ProvedLayout> proved_layouts() {
  const std::string replicas = "parallelism.data_parallel_replicate_degree=2";
  const std::string tensor = "parallelism.tensor_parallel_degree=2";
  const std::string context = "parallelism.context_parallel_degree=2";
  const std::string pipeline = "parallelism.pipeline_parallel_degree=2";
  return {
      {1, {"parallelism.fsdp_cpu_offload=true"}},
      {2, {"activation_checkpoint.mode=full", "model.dropout=0.1"}},
      {4, {replicas, "parallelism.fsdp_partition=by_dim"}},
      {8, {replicas, tensor, "parallelism.fsdp_cpu_offload=true"}},
      {8, {tensor, context, "parallelism.context_parallel_method=ring"}},
      {8, {replicas, context, "parallelism.context_parallel_method=ulysses"}},
      {8, {pipeline, tensor, "parallelism.pipeline_parallel_schedule=Interleaved1F1B"}},
      {8, {pipeline, replicas, "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"}},
      {4, kExperts + Strings{"parallelism.expert_parallel_degree=2", tensor}},
      {8, kExperts + Strings{"parallelism.expert_parallel_degree=4", replicas,
                             "parallelism.expert_parallel_dispatcher=allgather"}},
  };
}

/// All layouts in the long set, every third one from `first` on in the fast set.
void expect_proved(const std::string& device, size_t first) {
  if (long_tests()) first = 0;
  sim::Machine::get().set_delays({.seed = 6, .most_microseconds = 5});
  int64_t proved = 0;
  const std::vector<ProvedLayout> layouts = proved_layouts();
  for (size_t i = first; i < layouts.size(); i += long_tests() ? 1 : 3) {
    const ProvedLayout& layout = layouts[i];
    const Config config =
        load_config(std::nullopt, Strings{"preset=debug", "training.device=" + device,
                                          "training.local_batch_size=1", "training.global_batch_size=16"} +
                                      layout.options)
            .config;
    const TempFolder folder;
    const LayoutProof proof = prove_layout(small_exact_job(config, layout.ranks), folder.path());
    EXPECT_EQ(proof.difference, "") << device << ": " << join(layout.options, " ");
    proved += proof.difference.empty() ? 1 : 0;
  }
  std::printf("%lld layouts proved on %s\n", static_cast<long long>(proved), device.c_str());
  sim::Machine::get().set_delays({});
}

TEST(SimProofs, EveryLayoutWithADeviceForEachRankTrainsAsOneRank) {
  expect_proved("sim", 0);
}

TEST(SimProofs, EveryLayoutOnOneDeviceThatAllRanksShareTrainsAsOneRank) {
  expect_proved("sim:3", 1);
}

}  // namespace
}  // namespace stepforge::testing
