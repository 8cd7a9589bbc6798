// SPDX-License-Identifier: Apache-2.0
// Bytes and waiting of each axis of the mesh in the metrics.
#include <map>

#include <gtest/gtest.h>

#include "stepforge/metrics/jsonl.h"
#include "stepforge/step/collectives.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// The bytes of each group in one step, as the program states them.
std::map<std::string, double> stated_bytes(const StepProgram& program) {
  std::map<std::string, double> bytes;
  for (const CollectiveTotal& total : collective_totals(program))
    bytes[program.groups.at(static_cast<size_t>(total.group)).name] += static_cast<double>(total.bytes);
  return bytes;
}

struct AxisCase {
  const char* name;
  Strings args;
  const char* axis;  ///< over which blocks exchange, or units
};

class CommunicationMetrics : public ::testing::TestWithParam<AxisCase> {};

TEST_P(CommunicationMetrics, BytesOfEachAxisAreThoseOfTheProgram) {
  const TempFolder folder;
  const auto& [name, more, axis] = GetParam();
  Strings args =
      job(folder, "run", {"metrics.log_freq=1", "training.local_batch_size=4", "model.n_kv_heads=2"});
  args.insert(args.end(), more.begin(), more.end());
  std::map<std::string, double> stated;
  RankThreads ranks(2);
  ranks.run([&](int) { return args; },
            [&](TestRun& run, int rank) {
              if (rank != 0) return;
              run.trainer().add_callback(std::make_unique<CallAt>(
                  [&](Trainer& trainer) { stated = stated_bytes(trainer.train_program); }));
            });
  for (const auto& failure : ranks.failures) EXPECT_EQ(failure, "");
  ASSERT_TRUE(stated.contains(axis));
  int records = 0;
  for (const MetricsRecord& record : read_jsonl(folder / "run" / "metrics.jsonl")) {
    if (record.kind != "train") continue;
    ++records;
    EXPECT_GT(record.find(metric::comm_wait(axis)).value_or(0.0), 0.0);
    EXPECT_EQ(record.find(metric::comm_bytes(axis)).value_or(-1.0) * (1 << 30), stated.at(axis));
  }
  EXPECT_EQ(records, 4);
}

Strings context(const char* method) {
  return {"parallelism.context_parallel_degree=2",
          std::string("parallelism.context_parallel_method=") + method};
}

/// However uneven the loads are.
const Strings kGatheredTokens{"model.family=qwen3_moe",
                              "model.n_experts=4",
                              "model.experts_per_token=2",
                              "model.moe_ffn_dim=48",
                              "parallelism.expert_parallel_degree=2",
                              "parallelism.expert_parallel_dispatcher=allgather"};

INSTANTIATE_TEST_SUITE_P(
    Of, CommunicationMetrics,
    ::testing::Values(
        AxisCase{"shards", {}, "fsdp"}, AxisCase{"tensor", {"parallelism.tensor_parallel_degree=2"}, "tp"},
        AxisCase{"logits",
                 {"parallelism.tensor_parallel_degree=2", "parallelism.disable_loss_parallel=true",
                  "parallelism.enable_sequence_parallel=false"},
                 "tp"},
        AxisCase{"passed",
                 {"parallelism.tensor_parallel_degree=2", "parallelism.enable_async_tensor_parallel=true",
                  "activation_checkpoint.mode=full"},
                 "tp"},
        AxisCase{
            "recomputed", {"parallelism.tensor_parallel_degree=2", "activation_checkpoint.mode=full"}, "tp"},
        AxisCase{"gathered", context("allgather"), "cp"}, AxisCase{"ring", context("ring"), "cp"},
        AxisCase{"heads", context("ulysses"), "cp"}, AxisCase{"tokens", kGatheredTokens, "ep"},
        AxisCase{"stages",
                 {"parallelism.pipeline_parallel_degree=2", "training.local_batch_size=1",
                  "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"},
                 "pp"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace stepforge::testing
