// SPDX-License-Identifier: Apache-2.0
// Gradients are reduced in precision.reduce; sums over micro-batches are kept in fp32.
#include <mutex>

#include <ATen/ops/equal.h>

#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// The results of one step on two ranks.
struct Outcome {
  std::vector<CollectiveCall> sums;   ///< reductions of gradients, on all ranks
  std::vector<at::Tensor> gradients;  ///< of each unit, gathered
  int64_t planned_bytes = 0;          ///< of one rank's reductions
};

Outcome step(const TempFolder& folder, const std::string& dtype, int micro_batches, const Strings& more) {
  Outcome outcome;
  std::mutex mutex;
  const auto rule = [&](const CollectiveCall& call) {
    const std::lock_guard lock(mutex);
    const bool is_sum =
        call.kind == CollectiveKind::reduce_scatter || call.kind == CollectiveKind::all_reduce;
    // f64: the count of labels; i64: the self-test at the start
    if (is_sum && call.dtype != DType::f64 && call.dtype != DType::i64) outcome.sums.push_back(call);
    return Delay{};
  };
  RankThreads ranks(2, rule);
  const Strings args = job(folder, format("{}-{}", dtype, micro_batches),
                           Strings{"training.steps=1", "model.dropout=0", "precision.reduce=" + dtype,
                                   format("training.global_batch_size={}", 2 * micro_batches)} +
                               more);
  ranks.run([&](int) { return args; },
            [&](TestRun& run, int rank) {
              run.trainer().add_callback(std::make_unique<CallAt>([&, rank](Trainer& trainer) {
                for (size_t unit = 0; unit < trainer.store->size(); ++unit) {
                  const UnitStore& store = trainer.store->unit(unit);
                  const at::Tensor whole = store.whole(store.gradient()).clone();
                  if (rank == 0) outcome.gradients.push_back(whole);
                }
                if (rank != 0) return;
                for (const Operation& operation : trainer.train_program.operations) {
                  if (operation.lane == Lane::reduce) outcome.planned_bytes += operation.bytes;
                }
              }));
            });
  for (const auto& failure : ranks.failures) EXPECT_EQ(failure, "");
  return outcome;
}

const Strings kEach{"parallelism.fsdp_reduce_each_micro_batch=true"};
const Strings kReplicas{"parallelism.data_parallel_replicate_degree=2"};

TEST(ReduceDtype, IsUsedByEveryReductionAndByThePlan) {
  const TempFolder folder;
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    for (const Strings& more : std::vector<Strings>{{}, kEach, kReplicas}) {
      const Outcome outcome = step(folder, dtype, 2, more);
      ASSERT_FALSE(outcome.sums.empty());
      int64_t bytes = 0;
      for (const CollectiveCall& call : outcome.sums) {
        EXPECT_EQ(call.dtype, dtype_from_name(dtype)) << collective_text(call);
        bytes += static_cast<int64_t>(call.bytes);
      }
      EXPECT_EQ(bytes, 2 * outcome.planned_bytes) << dtype;
    }
  }
}

bool fits_bf16(const std::vector<at::Tensor>& gradients) {
  bool fits = true;
  for (const at::Tensor& gradient : gradients) {
    fits = fits && at::equal(gradient.to(at::kBFloat16).to(at::kFloat), gradient);
  }
  return fits;
}

TEST(ReduceDtype, SumsOfMicroBatchesAreNotRounded) {
  const TempFolder folder;
  EXPECT_TRUE(fits_bf16(step(folder, "bf16", 2, {}).gradients)) << "one reduction, rounded to be sent";
  const Outcome each = step(folder, "bf16", 2, kEach);
  EXPECT_FALSE(fits_bf16(each.gradients)) << "two reductions, added in fp32";
  const Outcome exact = step(folder, "fp32", 2, kEach);
  for (size_t unit = 0; unit < exact.gradients.size(); ++unit) {
    const double scale = exact.gradients[unit].abs().max().item<double>();
    // Each of the two reductions rounds to 8 bits of precision.
    EXPECT_LE((each.gradients[unit] - exact.gradients[unit]).abs().max().item<double>(), scale / 128) << unit;
  }
}

}  // namespace
}  // namespace stepforge::testing
