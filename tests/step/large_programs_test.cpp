// SPDX-License-Identifier: Apache-2.0
// Models of very many layers: work and memory grow linearly with the list of operations.
#include <gtest/gtest.h>

#include "stepforge/step/plan_text.h"
#include "tests/step/programs.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/sanitizer.h"

namespace stepforge::testing {
namespace {

RankOptions every_pass(int rank) {
  RankOptions options = small_options(2);
  options.ordered = true;
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  options.plan.offload = true;
  options.set_ranks(rank, 2, 1);
  return options;
}

/// Bytes allocated while the step is built, proved, measured and printed.
size_t bytes_for(int layers) {
  const ModelSpec model = small_model(layers);
  const AllocationMeter meter;
  const Programs programs = {build_step(model, every_pass(0)), build_step(model, every_pass(1))};
  check_programs(programs);
  render_plan(model, model, programs[0], {});
  return meter.total();
}

TEST(LargePrograms, MemoryGrowsLinearlyWithTheLayers) {
  constexpr int layers = kSanitizer ? 500 : 2000;
  const size_t small = bytes_for(layers / 4);
  const size_t large = bytes_for(layers);
  EXPECT_LT(large, 5 * small);
  EXPECT_LT(large / layers, 200U << 10);
}

/// Work that grew with the square of the layers would dominate all other tests here.
TEST(LargePrograms, TenThousandLayersAreBuiltAndProved) {
  const int layers = kSanitizer ? 1000 : 10000;
  const StepProgram program = build_step(small_model(layers), every_pass(0));
  EXPECT_GT(program.operations.size(), 20U * layers);
  EXPECT_NO_THROW(check_symmetric(program, 2, [&](int) { return views_of(program.groups); }));
}

}  // namespace
}  // namespace stepforge::testing
