// SPDX-License-Identifier: Apache-2.0
// Faults planted in programs of offloaded units: the checker finds each.
#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

RankOptions offloaded() {
  RankOptions options = two_micro_batches();
  options.plan.offload = true;
  return options;
}

RankOptions offloaded_each_micro_batch() {
  RankOptions options = offloaded();
  options.reduce.each_micro_batch = true;
  return options;
}

Programs one_rank(const RankOptions& options) {
  return programs_of(small_model(), 1, 1, options);
}

/// The index of the operation that copies these parts of the unit.
std::size_t copy_of(const StepProgram& program, OpKind kind, int unit, const StateParts& parts) {
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.kind == kind && operation.unit == unit && operation.parts == parts) return i;
  }
  ADD_FAILURE() << "no such copy";
  return 0;
}

constexpr StateParts kWeights{.weights = true};
constexpr StateParts kGradients{.gradients = true};
constexpr StateParts kAll{.weights = true, .gradients = true, .optimizer = true};
constexpr StateParts kUpdated{.weights = true, .optimizer = true};

std::vector<Fault> reload_faults() {
  using K = OpKind;
  return {
      {"NothingIsReloadedForTheGather", fsdp, offloaded(), kEveryRank,
       [](StepProgram& p) { erase(p, copy_of(p, K::reload_start, 1, kWeights)); }, 0, "gather_start layers.0",
       "the device's copy of the weights of unit layers.0 has not been made"},
      {"TheGatherDoesNotWaitForTheReload", fsdp, offloaded(), 1,
       [](StepProgram& p) {
         auto& needs = at(p, {K::gather_start, 2}).needs;
         needs.pop_back();
       },
       1, "gather_start layers.1", "may run before operation"},
      {"ReloadedTwice", fsdp, offloaded(), kEveryRank,
       [](StepProgram& p) { repeat(p, copy_of(p, K::reload_start, 1, kAll)); }, 0,
       "reload_start layers.0 weights gradients optimizer", "it has no buffer for the weights"},
      {"TheOptimizersStateIsNotReloaded", fsdp, offloaded(), kEveryRank,
       [](StepProgram& p) {
         Operation& reload = p.operations[copy_of(p, K::reload_start, 1, kAll)];
         reload.parts.optimizer = false;
         reload.bytes = 2 * 1024 * 4;
       },
       0, "update layers.0", "the device's copy of the moments of unit layers.0 has not been made"},
      {"TheReloadIsShort", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) { p.operations[copy_of(p, K::reload_start, 0, kWeights)].bytes /= 2; }, 0,
       "reload_start embedding weights", "it moves 2048 bytes, but there are 4096"},
      {"AReloadWithoutParts", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) { p.operations[copy_of(p, K::reload_start, 0, kWeights)].parts = {}; }, 0,
       "reload_start embedding", "it copies nothing"},
      {"TheUpdateDoesNotWaitForItsState", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) { at(p, {K::reload_wait, 1}).needs.clear(); }, 0, "reload_wait layers.0",
       "may run before operation"},
      {"UpdatesWithoutWait", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) {
         for (const int unit : {3, 2, 1}) erase(p, find(p, {K::reload_wait, unit}));
       },
       0, "update layers.0", "may run before operation"},
      {"AUnitThatIsNotOffloadedIsReloaded", fsdp, offloaded(), 1,
       [](StepProgram& p) { p.units[1].offloaded = false; }, 1, "reload_start layers.0 weights",
       "the unit is not offloaded"},
      {"AnOffloadedUnitIsMarkedResident", one_rank, offloaded(), 0,
       [](StepProgram& p) { p.units[1].resident = true; }, 0, "end of the program",
       "unit layers.0 is offloaded and must be gathered"},
  };
}

std::vector<Fault> offload_faults() {
  using K = OpKind;
  return {
      {"TheNormMissesAGradientOnTheHost", fsdp, offloaded(), kEveryRank,
       [](StepProgram& p) {
         erase(p, find(p, {K::offload_wait, 2}));
         erase(p, copy_of(p, K::offload_start, 2, kGradients));
       },
       0, "gradient_norm", "the device's copy of the gradient of unit layers.1 was already made"},
      {"TheNormDoesNotWaitForTheHost", hsdp, offloaded(), 3,
       [](StepProgram& p) {
         for (const int unit : {0, 1, 2, 3}) erase(p, find(p, {K::offload_wait, unit}));
       },
       3, "gradient_norm", "may run before operation"},
      {"OffloadedBeforeItIsReduced", fsdp, offloaded(), 1,
       [](StepProgram& p) {
         move(p, copy_of(p, K::offload_start, 1, kGradients), find(p, {K::reduce_start, 1}));
       },
       1, "offload_start layers.0 gradients",
       "the device's copy of the gradient of unit layers.0 has not been made"},
      {"OffloadedWhileItIsReduced", fsdp, offloaded(), 1,
       [](StepProgram& p) { p.operations[copy_of(p, K::offload_start, 1, kGradients)].needs.clear(); }, 1,
       "offload_start layers.0 gradients", "may run before operation"},
      {"OffloadedBeforeTheReplicasAreSummed", hsdp, offloaded(), kEveryRank,
       [](StepProgram& p) {
         move(p, copy_of(p, K::offload_start, 1, kGradients), find(p, {K::all_reduce_start, 1}));
       },
       0, "all_reduce_start layers.0",
       "the device's copy of the gradient of unit layers.0 was taken, or written back to the host"},
      {"TheUpdateIsNotWrittenBack", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) { erase(p, copy_of(p, K::offload_start, 3, kUpdated)); }, 0, "update head",
       "the device's copy of the weights of unit head is never taken, or written back to the host"},
      {"OnlyTheWeightsAreWrittenBack", fsdp, offloaded(), kEveryRank,
       [](StepProgram& p) {
         Operation& offload = p.operations[copy_of(p, K::offload_start, 1, kUpdated)];
         offload.parts.optimizer = false;
         offload.bytes = 1024 * 4;
       },
       0, "update layers.0",
       "the device's copy of the moments of unit layers.0 is never taken, or written back to the host"},
      {"WrittenBackBeforeTheUpdate", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) { move(p, copy_of(p, K::offload_start, 1, kUpdated), find(p, {K::update, 1})); }, 0,
       "offload_start layers.0 weights optimizer",
       "the device's copy of the weights of unit layers.0 has not been changed"},
      {"WrittenBackDuringTheUpdate", fsdp, offloaded(), 1,
       [](StepProgram& p) { p.operations[copy_of(p, K::offload_start, 1, kUpdated)].needs.clear(); }, 1,
       "offload_start layers.0 weights optimizer", "may run before operation"},
      {"TheSumSoFarIsNotReloaded", fsdp, offloaded_each_micro_batch(), kEveryRank,
       [](StepProgram& p) { erase(p, copy_of(p, K::reload_start, 1, kGradients)); }, 0,
       "reduce_start layers.0",
       "the device's copy of the gradient of unit layers.0 was taken, or written back to the host"},
      {"TheSumSoFarStaysOnTheDevice", fsdp, offloaded_each_micro_batch(), kEveryRank,
       [](StepProgram& p) { erase(p, copy_of(p, K::offload_start, 1, kGradients)); }, 0,
       "reload_start layers.0 gradients",
       "the host's copy of the gradient of unit layers.0 has not been made"},
      {"WaitingForTheWrongCopy", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) { at(p, {K::offload_wait, 1}).kind = K::reload_wait; }, 0, "reload_wait layers.0",
       "the copy of unit layers.0 to the device was followed"},
      {"TheCopyOnTheDeviceLeaks", one_rank, offloaded(), kEveryRank,
       [](StepProgram& p) { p.operations[copy_of(p, K::offload_start, 1, kUpdated)].frees.clear(); }, 0,
       "reload_start layers.0 weights gradients optimizer", "buffer weights layers.0 is never freed"},
  };
}

class PlantedOffloadFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedOffloadFault, IsFound) {
  expect_found(GetParam());
}

const auto name_of = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Reload, PlantedOffloadFault, ::testing::ValuesIn(reload_faults()), name_of);
INSTANTIATE_TEST_SUITE_P(Offload, PlantedOffloadFault, ::testing::ValuesIn(offload_faults()), name_of);

}  // namespace
}  // namespace stepforge::testing
