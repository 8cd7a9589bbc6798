// SPDX-License-Identifier: Apache-2.0
// Models of very many layers: work and memory grow with the list of operations, not with its square.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "stepforge/step/plan_text.h"
#include "tests/step/programs.h"

namespace {

std::atomic<int64_t> allocated_bytes = 0;

}  // namespace

// Counts what this test program allocates.
void* operator new(std::size_t bytes) {
  allocated_bytes += static_cast<int64_t>(bytes);
  if (void* address = std::malloc(bytes)) return address;
  throw std::bad_alloc();
}
void operator delete(void* address) noexcept {
  std::free(address);
}
void operator delete(void* address, std::size_t) noexcept {
  std::free(address);
}

namespace stepforge::testing {
namespace {

StepOptions every_pass(int rank) {
  StepOptions options = small_options(2);
  options.ordered = true;
  options.gather = {DType::bf16, GatherPolicy::Reshard::always, 1};
  options.offload.state = true;
  options.data_parallel = data_parallel(rank, 2, 1);
  return options;
}

/// Bytes allocated while the step is built, proved, measured and printed.
int64_t bytes_for(int layers) {
  const ModelSpec model = small_model(layers);
  const int64_t before = allocated_bytes;
  const Programs programs = {build_step(model, every_pass(0)), build_step(model, every_pass(1))};
  check_programs(programs);
  render_plan(model, programs[0], {});
  return allocated_bytes - before;
}

TEST(LargePrograms, NeedMemoryInProportionToTheirLayers) {
  const int64_t small = bytes_for(500);
  const int64_t large = bytes_for(2000);
  EXPECT_LT(large, 5 * small);
  EXPECT_LT(large / 2000, 200 << 10);
}

/// Work that grew with the square of the layers would dominate all other tests here.
TEST(LargePrograms, OfTenThousandLayersAreBuiltAndProved) {
  const StepProgram program = build_step(small_model(10000), every_pass(0));
  EXPECT_GT(program.operations.size(), 200000U);
  EXPECT_NO_THROW(check_symmetric(program, 2, [&](int) { return views_of(program.groups); }));
}

}  // namespace
}  // namespace stepforge::testing
