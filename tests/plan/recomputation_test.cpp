// SPDX-License-Identifier: Apache-2.0
// Recomputation of calls, from the configuration to the program and its texts.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/calls_text.h"
#include "stepforge/plan/job.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/step/plan_text.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Strings = std::vector<std::string>;

Config job_of(const Strings& settings) {
  Strings all{"model.n_layers=2", "model.vocab_size=256", "training.seq_len=16",
              "training.local_batch_size=2"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config({}, all).config;
}

StepProgram planned(const Strings& settings) {
  return plan_train_step(plan_job(job_of(settings)));
}

int64_t kept_bytes(const StepProgram& program, const std::string& block) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.name == "graph " + block + " m0") return buffer.bytes;
  return 0;
}

TEST(RecomputedCalls, AreThoseOfTheNamedKindsAndNamesInEveryLayer) {
  const StepProgram program =
      planned({"activation_checkpoint.mode=calls", "activation_checkpoint.calls=[\"swiglu\", \"mlp.norm\"]"});
  EXPECT_EQ(program.blocks[1].recomputed_regions, (Strings{"mlp.norm", "mlp.swiglu"}));
  EXPECT_EQ(program.blocks[2].recomputed_regions, program.blocks[1].recomputed_regions);
  EXPECT_TRUE(program.blocks[0].recomputed_regions.empty());
  EXPECT_GT(program.blocks[1].recomputed_bytes, 0);
  EXPECT_EQ(program.blocks[1].recomputed_flops, 0) << "neither is a product";
  EXPECT_EQ(kept_bytes(program, "layers.0"),
            kept_bytes(planned({}), "layers.0") - program.blocks[1].recomputed_bytes);
}

TEST(RecomputedCalls, UnknownNamesAreRefusedWithTheNamesOfTheModel) {
  const auto refused = [](const std::string& name) {
    return message_of<UsageError>([&] {
      planned({"activation_checkpoint.mode=calls", "activation_checkpoint.calls=[\"" + name + "\"]"});
    });
  };
  EXPECT_CONTAINS(refused("swigl"),
                  "recomputation of call \"swigl\": the model has no such call (did you mean "
                  "\"swiglu\"?); it has rms_norm, linear, rotary, attention, residual_add, swiglu, "
                  "attention.norm, attention.qkv",
                  "mlp.down");
  EXPECT_CONTAINS(refused("mlp"), "no such call");
}

TEST(RecomputationBudget, KeepsItsShareOfEachLayer) {
  const auto kept = [](const std::string& budget) {
    return static_cast<double>(kept_bytes(
        planned({"activation_checkpoint.mode=budget", "activation_checkpoint.memory_budget=" + budget}),
        "layers.1"));
  };
  const auto all = static_cast<double>(kept_bytes(planned({}), "layers.1"));
  EXPECT_EQ(kept("1"), all);
  EXPECT_EQ(kept("0"), 0);
  for (const char* budget : {"0.2", "0.5", "0.8"}) {
    EXPECT_LE(kept(budget), std::stod(budget) * all) << budget;
    EXPECT_GT(kept(budget), 0) << budget;
  }
}

TEST(RecomputationBudget, ChoosesTheSameOnEveryRankOfAPipeline) {
  const Config config = job_of({"activation_checkpoint.mode=budget", "parallelism.pipeline_parallel_degree=2",
                                "training.local_batch_size=4", "model.n_layers=4"});
  Strings first;
  for (const int rank : {0, 1}) {
    const ProvedStep step = prove_train_step(plan_job(config, {rank, 2}));
    for (const StepProgram& stage : step.stages)
      for (const ProgramBlock& block : stage.blocks) {
        if (!block.name.starts_with("layers.")) continue;
        if (first.empty()) first = block.recomputed_regions;
        EXPECT_EQ(block.recomputed_regions, first) << block.name;
      }
  }
  EXPECT_FALSE(first.empty());
}

TEST(RecomputationBudget, ThePlanNamesWhatItChose) {
  const Config config =
      job_of({"activation_checkpoint.mode=calls", "activation_checkpoint.calls=[\"swiglu\", \"mlp.norm\"]"});
  const Job job = plan_job(config);
  const ModelSpec& model = job.part;
  const StepProgram program = plan_train_step(job);
  const std::string plan = render_plan(model, model, program, {});
  EXPECT_CONTAINS(plan, "2 calls", "Recomputed parts, per micro-batch",
                  "layers.0 and those like it: mlp.norm, mlp.swiglu");
  const std::string calls = calls_text(model, program.blocks);
  EXPECT_CONTAINS(calls, "layers.0 to layers.1", "silu, recomputed in backward");
  EXPECT_EQ(calls_text(model).find("recomputed"), std::string::npos);
}

}  // namespace
}  // namespace stepforge::testing
