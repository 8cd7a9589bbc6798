// SPDX-License-Identifier: Apache-2.0
// The norm of the gradients counts each element of a model once, whichever ranks have it.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "stepforge/config/load.h"
#include "stepforge/plan/job.h"
#include "tests/catalog/all_families.h"
#include "tests/support/small_run.h"

namespace stepforge::testing {
namespace {

/// Two ranks of tensor parallelism, with attention whole where its heads cannot be divided.
Config two_ranks(const std::string& family, const Strings& more) {
  const Strings whole{"parallelism.tensor_parallel_plan=[{pattern=\"attention\",style=\"replicate\"}]"};
  return load_config(
             {}, Strings{"model.n_layers=2", "model.vocab_size=256", "model.dim=36", "model.ffn_dim=48",
                         "model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=10", "training.seq_len=16",
                         "training.local_batch_size=2", "parallelism.tensor_parallel_degree=2"} +
                     setting_overrides(family, /*windows=*/false) +
                     (needs_whole_attention(family) ? whole : Strings{}) + more)
      .config;
}

// Finds what went wrong in Megatron-LM#7452 and #7530: a sink for each head, divided like the heads, counted on one rank.
TEST(CountedElements, AreAllElementsOnceInEveryFamily) {
  for (const std::string& family : family_names()) {
    std::vector<Strings> layouts = {{}, {"parallelism.enable_sequence_parallel=false"}};
    if (has_experts(family)) {
      layouts.push_back({"parallelism.expert_parallel_degree=2"});
      layouts.push_back({"parallelism.expert_tensor_parallel_degree=2"});
    }
    for (const Strings& layout : layouts) {
      const Config config = two_ranks(family, layout);
      std::map<std::string, int64_t> counted;
      std::map<std::string, int64_t> shards;
      for (int rank = 0; rank < 2; ++rank) {
        const Job job = plan_job(config, {rank, 2});
        const std::vector<UnitSpec>& units = job.part.units;
        for (size_t u = 0; u < units.size(); ++u) {
          const UnitLayout& unit = job.layout.units.at(u);
          for (size_t p = 0; p < units[u].parameters.size(); ++p) {
            const ParameterSpec& parameter = units[u].parameters[p];
            shards[parameter.name] = job.layout.size_of(unit.shard_group);
            if (unit.counts(p)) counted[parameter.name] += parameter.elements();
          }
        }
      }
      for (const UnitSpec& unit : plan_model(config).units)
        for (const ParameterSpec& parameter : unit.parameters)
          EXPECT_EQ(counted[parameter.name], parameter.elements() * shards[parameter.name])
              << family << ", " << parameter.name << ", " << (layout.empty() ? "" : layout[0]);
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
