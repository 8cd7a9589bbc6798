// SPDX-License-Identifier: Apache-2.0
// Programs of offloaded units: when their state is copied, and how much of it the device holds.
#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/step/memory.h"
#include "tests/step/programs.h"

namespace stepforge::testing {
namespace {

RankOptions offloaded(int micro_batches) {
  RankOptions options = small_options(micro_batches);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  options.plan.offload = true;
  return options;
}

StepProgram built(int shards, int replicas, RankOptions options, const ModelSpec& model) {
  options.set_ranks(0, shards, replicas);
  return build_step(model, options);
}

/// The operations that copy or use the state of one unit.
std::string state_operations(const StepProgram& program, int unit) {
  std::string text;
  for (const Operation& operation : program.operations)
    if (operation.unit == unit && operation.kind != OpKind::gather_wait && operation.kind != OpKind::release)
      text += operation_text(program, operation) + "\n";
  return text;
}

/// Those operations, followed by the update, which is the same in all programs.
std::string with_update(const std::string& operations) {
  return operations +
         "offload_wait layers.0\n"
         "reload_start layers.0 weights gradients optimizer\n"
         "reload_wait layers.0\n"
         "update layers.0\n"
         "offload_start layers.0 weights optimizer\n";
}

TEST(Offload, StateIsOnTheDeviceForGathersReductionAndUpdate) {
  EXPECT_EQ(state_operations(built(2, 1, offloaded(1), small_model(1)), 1),
            with_update("reload_start layers.0 weights\n"
                        "gather_start layers.0 over fsdp\n"
                        "reload_start layers.0 weights\n"
                        "gather_start layers.0 over fsdp\n"
                        "start_gradient layers.0\n"
                        "reduce_start layers.0 over fsdp\n"
                        "reduce_wait layers.0\n"
                        "offload_start layers.0 gradients\n"));
}

TEST(Offload, OneRankReducesWithoutAGroup) {
  RankOptions options = offloaded(2);
  options.gather.reshard = ReshardMode::never;
  EXPECT_EQ(state_operations(built(1, 1, options, small_model(1)), 1),
            with_update("reload_start layers.0 weights\n"
                        "gather_start layers.0\n"
                        "start_gradient layers.0\n"
                        "reduce_start layers.0\n"
                        "reduce_wait layers.0\n"
                        "offload_start layers.0 gradients\n"));
}

TEST(Offload, SumsOfMicroBatchesAreReloadedAndOffloaded) {
  RankOptions options = offloaded(2);
  options.reduce.each_micro_batch = true;
  options.gather.reshard = ReshardMode::never;
  EXPECT_EQ(state_operations(built(2, 2, options, small_model(1)), 1),
            with_update("reload_start layers.0 weights\n"
                        "gather_start layers.0 over fsdp\n"
                        "start_gradient layers.0\n"
                        "reduce_start layers.0 over fsdp\n"
                        "reduce_wait layers.0\n"
                        "offload_start layers.0 gradients\n"
                        "start_gradient layers.0\n"
                        "reload_start layers.0 gradients\n"
                        "reduce_start layers.0 over fsdp accumulate\n"
                        "reduce_wait layers.0\n"
                        "all_reduce_start layers.0 over dp_replicate\n"
                        "offload_start layers.0 gradients\n"
                        "all_reduce_wait layers.0\n"));
}

TEST(Offload, AFrozenUnitIsOnlyReloadedForGathers) {
  ModelSpec model = small_model(1);
  model.units[1].trainable = false;
  const StepProgram program = built(2, 1, offloaded(1), model);
  for (const Operation& operation : program.operations)
    if (operation.unit == 1 && operation.lane == Lane::copy) {
      EXPECT_EQ(operation_text(program, operation), "reload_start layers.0 weights");
    }
}

TEST(Offload, AnEvaluationReloadsWhatItGathers) {
  RankOptions options = offloaded(2);
  options.kind = ProgramKind::evaluate;
  const StepProgram program = built(2, 1, options, small_model(1));
  EXPECT_NO_THROW(check_programs(programs_of(small_model(1), 2, 1, options)));
  const auto count = [&](OpKind kind) {
    return std::count_if(program.operations.begin(), program.operations.end(),
                         [&](const Operation& operation) { return operation.kind == kind; });
  };
  EXPECT_EQ(count(OpKind::reload_start), count(OpKind::gather_start));
  EXPECT_EQ(count(OpKind::offload_start), 0);
}

TEST(Offload, PrefetchLimitsTheStateOnTheDevice) {
  for (int prefetch = 0; prefetch < 3; ++prefetch) {
    RankOptions options = offloaded(2);
    options.offload.prefetch = prefetch;
    const StepProgram program = built(2, 1, options, small_model(6));
    int64_t state = 0;
    int64_t most = 0;
    for (const Operation& operation : program.operations) {
      const auto bytes_of = [&](const std::vector<int>& buffers) {
        int64_t bytes = 0;
        for (const int buffer : buffers) {
          const Buffer& of = program.buffers[static_cast<std::size_t>(buffer)];
          bytes += of.kind == BufferKind::optimizer ? of.bytes : 0;
        }
        return bytes;
      };
      state += bytes_of(operation.allocates);
      most = std::max(most, state);
      state -= bytes_of(operation.frees);
    }
    EXPECT_EQ(most, (prefetch + 1) * 1024 * 8) << prefetch;
  }
}

TEST(Offload, TheAccountSeparatesDeviceAndHost) {
  RankOptions options = offloaded(1);
  const MemoryAccount with_offload = account(built(2, 1, options, small_model(6)));
  options.plan.offload = false;
  const MemoryAccount without_offload = account(built(2, 1, options, small_model(6)));
  EXPECT_EQ(with_offload.host_bytes, 8 * 1024 * (4 + 4 + 8));
  EXPECT_EQ(with_offload.persistent_bytes(), 0);
  EXPECT_EQ(without_offload.host_bytes, 0);
  EXPECT_EQ(without_offload.persistent_bytes(), with_offload.host_bytes);
  EXPECT_LT(with_offload.peak_bytes, without_offload.peak_bytes);
  EXPECT_EQ(with_offload.peak_of_one_memory(), with_offload.peak_bytes + with_offload.host_bytes);
}

TEST(Offload, ReloadsForGathersDoNotWaitForReductions) {
  // The copy lane runs in order, so a copy that needs a reduction must come after the compute lane has waited
  // for it.
  for (const int in_flight : {1, 3}) {
    RankOptions options = offloaded(2);
    options.reduce.in_flight = in_flight;
    const StepProgram program = built(2, 2, options, small_model(4));
    int waited = -1;
    std::vector<int> reductions(program.units.size(), -1);  // the latest of each unit
    for (int i = 0; i < std::ssize(program.operations); ++i) {
      const Operation& operation = element(program.operations, i);
      if (operation.lane == Lane::reduce) element(reductions, operation.unit) = i;
      if (operation.kind == OpKind::reduce_wait || operation.kind == OpKind::all_reduce_wait)
        waited = std::max(waited, element(reductions, operation.unit));
      if (operation.kind == OpKind::offload_start && operation.parts.gradients) {
        EXPECT_LE(element(reductions, operation.unit), waited);
      }
    }
  }
}

TEST(Offload, RefusesOptionsThatDoNotFit) {
  RankOptions options = offloaded(1);
  options.offload.prefetch = -1;
  EXPECT_THROW(built(1, 1, options, small_model(1)), UsageError);
}

}  // namespace
}  // namespace stepforge::testing
