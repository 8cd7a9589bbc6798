// SPDX-License-Identifier: Apache-2.0
// Steps that are delayed or broken off at any of their operations.
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "stepforge/base/random.h"
#include "tests/proofs/exact_model.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

using Watch = std::function<void(const Operation& operation, bool ended)>;

/// Lets `watch` see every operation of the run's training steps.
void watch_operations(TestRun& run, const Watch& watch) {
  after_build_step(run.trainer(), "executor",
                   [watch](Trainer& trainer) { trainer.train_step->on_operation = watch; });
}

struct Case {
  int ranks;
  Words words;
};

/// Their programs have every kind of operation that a data-parallel training step can have.
const std::vector<Case> cases = {
    {2,
     {"parallelism.fsdp_forward_prefetch=2", "parallelism.fsdp_backward_prefetch=2",
      "parallelism.fsdp_reduce_in_flight=2"}},
    {4,
     {"parallelism.data_parallel_replicate_degree=2", "activation_checkpoint.mode=full",
      "parallelism.fsdp_reduce_each_micro_batch=true", "parallelism.fsdp_cpu_offload=true"}},
    {2, {"parallelism.data_parallel_replicate_degree=2", "precision.compute=bf16"}},
    {2,
     {"training.reduction=ordered", "training.global_batch_size=8", "parallelism.fsdp_forward_prefetch=0"}},
};

Words job(const TempFolder& folder, const std::string& name, const Case& layout) {
  return trainer_run(folder / name) +
         Words{"training.local_batch_size=1", "training.global_batch_size=8", "training.steps=3",
               "model.dropout=0.1", "checkpoint.enable=false"} +
         layout.words;
}

std::set<OpKind> kinds_of(const StepProgram& program) {
  std::set<OpKind> kinds;
  for (const Operation& operation : program.operations) kinds.insert(operation.kind);
  return kinds;
}

std::set<OpKind> kinds_of_data_parallel_training() {
  std::set<OpKind> kinds;
  for (int kind = 0; kind <= static_cast<int>(OpKind::reload_wait); ++kind) {
    kinds.insert(static_cast<OpKind>(kind));
  }
  for (const OpKind kind : {OpKind::loss, OpKind::logits}) kinds.erase(kind);  // of other programs
  for (const OpKind kind :
       {OpKind::backward_input, OpKind::backward_weight, OpKind::tie_reduce, OpKind::send, OpKind::receive}) {
    kinds.erase(kind);  // of pipelines
  }
  return kinds;
}

TEST(Disturbed, DelaysBeforeAndAfterEachKindOfOperationChangeNoBit) {
  const TempFolder folder;
  std::set<OpKind> delayed;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto words = [&](const std::string& name) {
      return job(folder, format("{}-{}", name, i), cases[i]);
    };
    std::set<OpKind> kinds;
    const auto undisturbed =
        RankThreads(cases[i].ranks)
            .run([&](int) { return words("quick"); },
                 [&](TestRun& run, int rank) {
                   if (rank != 0) return;
                   run.trainer().add_callback(std::make_unique<CallAt>(
                       [&](Trainer& trainer) { kinds = kinds_of(trainer.train_program); }));
                 });
    ASSERT_EQ(undisturbed[0].size(), 3U);
    delayed.insert(kinds.begin(), kinds.end());
    for (const OpKind kind : kinds) {
      for (const bool after : {false, true}) {
        // A quarter of the operations of the kind, others on each rank.
        std::atomic<uint64_t> calls{0};
        const auto delay = [&](const Operation& operation, bool ended) {
          if (operation.kind != kind || ended != after || mix_bits(calls++) % 4 != 0) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        RankThreads threads(cases[i].ranks);
        const auto slow = threads.run([&](int) { return words("slow"); },
                                      [&](TestRun& run, int) { watch_operations(run, delay); });
        EXPECT_GT(calls, 0U);
        expect_same_numbers(slow, undisturbed[0],
                            format("case {}, delays {} {}", i, after ? "after" : "before", op_name(kind)));
      }
    }
  }
  EXPECT_EQ(delayed, kinds_of_data_parallel_training());
}

/// Steps by hand, like a user's own loop around the trainer's parts: step number s is broken off at operation
/// number s, if `broken`, and done again. As many as the program has operations before the first update.
Records steps_by_hand(TestRun& run, bool broken) {
  Trainer& trainer = run.build();
  const auto& operations = trainer.train_program.operations;
  Records records;
  for (size_t step = 0; operations.at(step).kind != OpKind::update; ++step) {
    std::vector<Batch> batches;
    for (int i = 0; i < trainer.batch.micro_batches(); ++i) batches.push_back(trainer.loader->next());
    const StepContext place{static_cast<int64_t>(step)};
    if (broken) {
      trainer.train_step->on_operation = [&](const Operation& operation, bool) {
        if (&operation == &operations[step]) throw Error("broken off");
      };
      EXPECT_CONTAINS(message_of<Error>([&] { trainer.train_step->run(batches, place); }),
                      operation_text(trainer.train_program, operations[step]));
      trainer.train_step->on_operation = {};
    }
    StepRecord record;
    record.step = place.step;
    const StepResult result = trainer.train_step->run(batches, place);
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.bits = bits_of(trainer);
    records.push_back(record);
  }
  return records;
}

TEST(Disturbed, AStepBrokenOffAtAnyOperationBeforeItsUpdateCanBeDoneAgain) {
  const TempFolder folder;
  const std::vector<Words> programs = {{"precision.compute=bf16", "activation_checkpoint.mode=full"},
                                       {"training.reduction=ordered"},
                                       {"training.local_batch_size=2"},
                                       {"parallelism.fsdp_cpu_offload=true"}};
  for (size_t i = 0; i < programs.size(); ++i) {
    TestRun undisturbed(job(folder, format("undisturbed-{}", i), {1, programs[i]}));
    TestRun broken(job(folder, format("broken-{}", i), {1, programs[i]}));
    const Records expected = steps_by_hand(undisturbed, false);
    EXPECT_GT(expected.size(), 30U);
    EXPECT_EQ(steps_by_hand(broken, true), expected) << join(programs[i], " ");
  }
}

}  // namespace
}  // namespace stepforge::testing
