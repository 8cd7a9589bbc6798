// SPDX-License-Identifier: Apache-2.0
// A model that is not a chain: a value that several layers and a second head take, over all stages of a pipeline.
#include "tests/proofs/exact_choices.h"
#include "tests/proofs/pipeline_choices.h"

namespace stepforge::testing {
namespace {

using ExactGraph = ExactRuns;

struct GraphCase {
  int ranks;
  Strings args;
};

Strings staged(const PipelineCase& pipeline) {
  return overrides_of(pipeline) +
         Strings{"parallelism.pipeline_parallel_layers_per_stage=0", "model.n_layers=6"};
}

TEST_P(ExactGraph, EveryLayoutGivesTheBitsOfOneRank) {
  const TempFolder folder;
  const Strings job{"training.seq_len=24", "model.n_layers=6"};
  const WholeRun one = layout_on_one(folder / "one", job);
  const std::vector<GraphCase> cases = {
      {1, {"training.local_batch_size=4", "activation_checkpoint.mode=full"}},
      {2, {"parallelism.fsdp_partition=by_tensor", "activation_checkpoint.mode=every_n"}},
      {4, overrides_of({4, 2, 2, 1, {}})},
      {2, staged({"1F1B", 2, 1})},
      {4, staged({"GPipe", 2, 1}) + Strings{"parallelism.tensor_parallel_degree=2"}},
      {4, staged({"1F1B", 4, 1}) + Strings{"activation_checkpoint.mode=full"}},
      {4, staged({"Interleaved1F1B", 2, 2}) + Strings{"parallelism.fsdp_cpu_offload=true"}},
      {4, staged({"InterleavedZeroBubble", 2, 2}) + Strings{"parallelism.context_parallel_degree=2"}},
      {2, staged({"ZBVZeroBubble", 2, 2}) + Strings{"training.local_batch_size=2"}},
      {4, staged({"DualPipeV", 4, 2})},
      {1, staged({"ZBVZeroBubble", 1, 2})}};
  for (const GraphCase& layout : cases) expect_bits_of(one, folder / "many", layout.ranks, job + layout.args);
}

INSTANTIATE_TEST_SUITE_P(Models, ExactGraph, ::testing::Values(ExactModel::graph),
                         [](const auto&) { return "graph"; });

}  // namespace
}  // namespace stepforge::testing
