// SPDX-License-Identifier: Apache-2.0
// Steps that are delayed or interrupted at any of their operations.
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "stepforge/base/random.h"
#include "tests/catalog/all_families.h"
#include "tests/proofs/exact_model.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

using Watch = std::function<void(const Operation& operation, bool ended)>;

/// Calls `watch` before and after every operation of the run's training steps.
void watch_operations(TestRun& run, const Watch& watch) {
  after_build_step(run.trainer(), "executor",
                   [watch](Trainer& trainer) { trainer.train_step->on_operation = watch; });
}

struct Case {
  int ranks;
  Strings overrides;
};

/// Together their programs have every kind of operation of a training step.
const std::vector<Case> kCases = {
    {2,
     {"parallelism.fsdp_forward_prefetch=2", "parallelism.fsdp_backward_prefetch=2",
      "parallelism.fsdp_reduce_in_flight=2"}},
    {4,
     {"parallelism.data_parallel_replicate_degree=2", "activation_checkpoint.mode=full",
      "parallelism.fsdp_reduce_each_micro_batch=true", "parallelism.fsdp_cpu_offload=true"}},
    {2, {"parallelism.data_parallel_replicate_degree=2", "precision.compute=bf16"}},
    {2,
     {"training.reduction=ordered", "training.global_batch_size=8", "parallelism.fsdp_forward_prefetch=0"}},
    {4, {"parallelism.tensor_parallel_degree=2", "model.n_kv_heads=2", "activation_checkpoint.mode=full"}},
    {2,
     {"parallelism.pipeline_parallel_degree=2",
      "parallelism.pipeline_parallel_schedule=InterleavedZeroBubble",
      "parallelism.pipeline_parallel_layers_per_stage=1", "model.tie_embeddings=true"}},
    {2,
     {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=1F1B",
      "model.tie_embeddings=true", "training.reduction=ordered"}},
    {2, setting_overrides("deepseek_v3", /*windows=*/false) +
            Strings{"model.first_dense_layers=0", "model.router_bias_update_speed=0.001",
                    "parallelism.expert_parallel_degree=2"}},
};

Strings job(const TempFolder& folder, const std::string& name, const Case& layout) {
  return trainer_run(folder / name) +
         Strings{"training.local_batch_size=1", "training.global_batch_size=8", "training.steps=3",
                 "model.dropout=0.1", "checkpoint.enable=false"} +
         layout.overrides;
}

std::set<OpKind> kinds_of(const StepProgram& program) {
  std::set<OpKind> kinds;
  for (const Operation& operation : program.operations) kinds.insert(operation.kind);
  return kinds;
}

std::set<OpKind> kinds_of_training() {
  std::set<OpKind> kinds;
  for (int kind = 0; kind <= static_cast<int>(OpKind::reload_wait); ++kind)
    if (!has_trait(static_cast<OpKind>(kind), kNeverTrains | kGenerates))
      kinds.insert(static_cast<OpKind>(kind));
  return kinds;
}

// Finds what went wrong in pytorch#177319, Megatron-LM#4609, #5222 (buffers reused in flight), #3693
// (overlap with several copies of the optimizer's state).
TEST(FaultInjection, DelaysBeforeAndAfterEachKindOfOperationChangeNoBit) {
  const TempFolder folder;
  std::set<OpKind> delayed;
  for (size_t i = 0; i < kCases.size(); ++i) {
    const auto overrides = [&](const std::string& name) {
      return job(folder, format("{}-{}", name, i), kCases[i]);
    };
    std::set<OpKind> kinds;
    const auto quick = RankThreads(kCases[i].ranks)
                           .run([&](int) { return overrides("quick"); },
                                [&](TestRun& run, int rank) {
                                  if (rank != 0) return;
                                  run.trainer().add_callback(std::make_unique<CallAt>(
                                      [&](Trainer& trainer) { kinds = kinds_of(trainer.train_program); }));
                                });
    ASSERT_EQ(quick[0].size(), 3U);
    delayed.insert(kinds.begin(), kinds.end());
    for (const OpKind kind : kinds) {
      for (const bool after : {false, true}) {
        // A quarter of the operations of the kind, different ones on each rank.
        std::atomic<uint64_t> calls{0};
        const auto delay = [&](const Operation& operation, bool ended) {
          if (operation.kind != kind || ended != after || mix_bits(calls++) % 4 != 0) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        RankThreads threads(kCases[i].ranks);
        const auto slow = threads.run([&](int) { return overrides("slow"); },
                                      [&](TestRun& run, int) { watch_operations(run, delay); });
        EXPECT_GT(calls, 0U);
        const std::string name =
            format("case {}, delays {} {}", i, after ? "after" : "before", op_name(kind));
        for (size_t rank = 0; rank < slow.size(); ++rank)
          expect_same_numbers({slow[rank]}, quick[rank], name);
      }
    }
  }
  EXPECT_EQ(delayed, kinds_of_training());
}

/// Runs as many steps as the program has operations before the first update, like a custom loop around the
/// trainer's parts. With `interrupted`, step s first throws at operation s and is then repeated.
Records run_steps(TestRun& run, bool interrupted) {
  Trainer& trainer = run.build();
  const auto& operations = trainer.train_program.operations;
  Records records;
  for (size_t step = 0; operations.at(step).kind != OpKind::update; ++step) {
    std::vector<Batch> batches;
    for (int i = 0; i < trainer.job.batch.micro_batches(); ++i) batches.push_back(trainer.loader->next());
    const StepContext context{static_cast<int64_t>(step)};
    if (interrupted) {
      trainer.train_step->on_operation = [&](const Operation& operation, bool) {
        if (&operation == &operations[step]) throw Error("interrupted");
      };
      EXPECT_CONTAINS(message_of<Error>([&] { trainer.train_step->run(batches, context); }),
                      operation_text(trainer.train_program, operations[step]));
      trainer.train_step->on_operation = {};
    }
    StepRecord record;
    record.step = context.step;
    const StepResult result = trainer.train_step->run(batches, context);
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.bits = bits_of(trainer);
    records.push_back(record);
  }
  return records;
}

TEST(FaultInjection, AStepInterruptedAtAnyOperationBeforeItsUpdateCanBeRepeated) {
  const TempFolder folder;
  const std::vector<Strings> programs = {{"precision.compute=bf16", "activation_checkpoint.mode=full"},
                                         {"training.reduction=ordered"},
                                         {"training.local_batch_size=2"},
                                         {"parallelism.fsdp_cpu_offload=true"}};
  for (size_t i = 0; i < programs.size(); ++i) {
    TestRun reference(job(folder, format("reference-{}", i), {1, programs[i]}));
    TestRun interrupted(job(folder, format("interrupted-{}", i), {1, programs[i]}));
    const Records expected = run_steps(reference, false);
    EXPECT_GT(expected.size(), 30U);
    EXPECT_EQ(run_steps(interrupted, true), expected) << join(programs[i], " ");
  }
}

}  // namespace
}  // namespace stepforge::testing
