#include "step/plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "step/build.h"
#include "step/memory.h"
#include "tests/step/fixture.h"

namespace stepforge::test {
namespace {

std::string plan_of(const ModelSpec& model, const StepOptions& options) {
  PlanText text;
  text.title = "tiny";
  text.seq_len = 16;
  text.tokens_per_step = 4096;
  return render_plan(model, build_step(model, options), text);
}

TEST(RenderPlan, NamesParametersFlopsTokensAndPeak) {
  const ModelSpec model = small_model(3);
  const StepOptions options = small_options(4);
  const std::string plan = plan_of(model, options);
  const MemoryAccount memory = account(build_step(model, options));
  EXPECT_NE(plan.find("tiny: 736 parameters (736), 5 units, 5 blocks"), std::string::npos) << plan;
  EXPECT_NE(plan.find("4,096 tokens per step in 4 micro-batches per rank"), std::string::npos) << plan;
  EXPECT_NE(plan.find(with_thousands(memory.peak_bytes)), std::string::npos) << plan;
  EXPECT_NE(plan.find("reached at operation"), std::string::npos) << plan;
  for (const char* kind : {"weights", "gradients", "optimizer", "activations", "workspace"}) {
    EXPECT_NE(plan.find(kind), std::string::npos) << plan;
  }
}

TEST(RenderPlan, FoldsAlikeUnitsAndBlocks) {
  const std::string plan = plan_of(small_model(126), small_options(1));
  EXPECT_NE(plan.find("layers.0 to layers.125, each of 126"), std::string::npos) << plan;
  EXPECT_LT(std::count(plan.begin(), plan.end(), '\n'), 60);
}

TEST(RenderPlan, SaysWhatIsFrozenAndRecomputed) {
  ModelSpec model = small_model(2);
  model.units[0].trainable = false;
  StepOptions options = small_options(1);
  options.recompute.mode = RecomputePolicy::Mode::segments;
  options.recompute.segments = {"attention", "mlp"};
  const std::string plan = plan_of(model, options);
  EXPECT_NE(plan.find("frozen"), std::string::npos) << plan;
  EXPECT_NE(plan.find("attention+mlp"), std::string::npos) << plan;
}

}  // namespace
}  // namespace stepforge::test
