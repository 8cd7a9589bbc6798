// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/build.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/step/passes.h"
#include "tests/step/fixture.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

int count(const StepProgram& program, OpKind kind) {
  return static_cast<int>(std::count_if(program.operations.begin(), program.operations.end(),
                                        [&](const Operation& operation) { return operation.kind == kind; }));
}

int64_t persistent_bytes(const StepProgram& program, BufferKind kind) {
  int64_t sum = 0;
  for (const Buffer& buffer : program.buffers)
    sum += buffer.persistent && buffer.kind == kind ? buffer.bytes : 0;
  return sum;
}

std::string refusal(const ModelSpec& model, const RankOptions& options) {
  return message_of<UsageError>([&] { build_step(model, options); });
}

TEST(BuildStep, ListingOfATinyTrainingProgram) {
  EXPECT_EQ(listing(build_step(small_model(1), small_options(1))),
            "start_gradient embedding\n"
            "start_gradient layers.0\n"
            "start_gradient head\n"
            "load_batch m0 +batch m0\n"
            "forward embedding m0 graph +bundle embedding m0 +graph embedding m0\n"
            "forward layers.0 m0 graph +bundle layers.0 m0 +graph layers.0 m0\n"
            "loss_forward_backward head m0 +bundle_gradient layers.0 m0 -bundle layers.0 m0\n"
            "backward layers.0 m0 +bundle_gradient embedding m0 -bundle embedding m0 -graph layers.0 m0"
            " -bundle_gradient layers.0 m0\n"
            "backward embedding m0 -batch m0 -graph embedding m0 -bundle_gradient embedding m0\n"
            "gradient_norm\n"
            "check_finite\n"
            "update embedding\n"
            "update layers.0\n"
            "update head\n");
}

TEST(BuildStep, EvaluationKeepsNoGraphAndFreesEachBundleAfterTheNextBlock) {
  RankOptions options = small_options(2);
  options.kind = ProgramKind::evaluate;
  EXPECT_EQ(listing(build_step(small_model(1), options)),
            "load_batch m0 +batch m0\n"
            "forward embedding m0 +bundle embedding m0\n"
            "forward layers.0 m0 +bundle layers.0 m0 -bundle embedding m0\n"
            "loss head m0 -batch m0 -bundle layers.0 m0\n"
            "load_batch m1 +batch m1\n"
            "forward embedding m1 +bundle embedding m1\n"
            "forward layers.0 m1 +bundle layers.0 m1 -bundle embedding m1\n"
            "loss head m1 -batch m1 -bundle layers.0 m1\n");
}

TEST(BuildStep, GenerationEndsInLogitsAndHoldsAKvCache) {
  RankOptions options = small_options(1);
  options.kind = ProgramKind::generate;
  options.kv_cache_tokens = 10;
  options.sequences = 3;
  const StepProgram program = build_step(small_model(2), options);
  EXPECT_EQ(program.operations.back().kind, OpKind::logits);
  EXPECT_EQ(program.operations.back().workspace, 3 * (32 + 8) * 4);
  EXPECT_EQ(persistent_bytes(program, BufferKind::kv_cache), 2 * 2 * 2 * 4 * 10 * 4);
  EXPECT_EQ(persistent_bytes(program, BufferKind::gradients), 0);
}

TEST(BuildStep, PersistentBuffersFollowTheFlatLayout) {
  const ModelSpec model = small_model(2);
  const StepProgram program = build_step(model, small_options(1));
  int64_t elements = 0;
  for (const UnitSpec& unit : model.units) elements += flat_layout(unit).size;
  EXPECT_EQ(persistent_bytes(program, BufferKind::weights), elements * 4);
  EXPECT_EQ(persistent_bytes(program, BufferKind::gradients), elements * 4);
  EXPECT_EQ(persistent_bytes(program, BufferKind::optimizer), elements * 8);
}

TEST(BuildStep, BuffersHaveTheSizesOfTheSpecification) {
  const ModelSpec model = small_model(1);
  const StepProgram program = build_step(model, small_options(1));
  std::map<std::string, int64_t> bytes;
  for (const Buffer& buffer : program.buffers) bytes[buffer.name] = buffer.bytes;
  EXPECT_EQ(bytes.at("batch m0"), 16 * 24);
  EXPECT_EQ(bytes.at("bundle layers.0 m0"), 16 * 8 * 4);
  EXPECT_EQ(bytes.at("bundle_gradient layers.0 m0"), 16 * 8 * 4);
  EXPECT_EQ(bytes.at("graph layers.0 m0"), 16 * (2 + 8 + 8 + 16) * 4);
}

TEST(BuildStep, ATiedHeadUsesTheEmbeddingsUnit) {
  const StepProgram program = build_step(small_model(1, true), small_options(1));
  EXPECT_EQ(program.blocks.back().units, (std::vector<int>{2, 0}));
  EXPECT_EQ(count(program, OpKind::update), 3);
}

TEST(BuildStep, BlocksBelowTheLowestTrainableUnitHaveNoBackward) {
  ModelSpec model = small_model(2);
  model.units[0].trainable = false;
  model.units[1].trainable = false;
  const std::string text = listing(build_step(model, small_options(1)));
  EXPECT_CONTAINS(text, "forward embedding m0 +bundle");
  EXPECT_CONTAINS(text, "forward layers.0 m0 +bundle");
  EXPECT_CONTAINS(text, "forward layers.1 m0 graph");
  EXPECT_EQ(text.find("backward layers.0"), std::string::npos) << text;
  EXPECT_EQ(text.find("bundle_gradient layers.0"), std::string::npos) << text;
  EXPECT_EQ(text.find("update layers.0"), std::string::npos) << text;
  EXPECT_CONTAINS(text, "update layers.1");
}

TEST(BuildStep, RefusesOptionsThatDoNotFit) {
  RankOptions options = small_options(0);
  EXPECT_CONTAINS(refusal(small_model(), options), "at least one micro-batch, not 0");
  options = small_options(1);
  options.gather.prefetch = -1;
  EXPECT_CONTAINS(refusal(small_model(), options), "0 or more, not -1");
  ModelSpec frozen = small_model();
  for (UnitSpec& unit : frozen.units) unit.trainable = false;
  EXPECT_CONTAINS(refusal(frozen, small_options(1)), "nothing to train");
  ModelSpec headless = small_model();
  headless.blocks.pop_back();
  EXPECT_CONTAINS(refusal(headless, small_options(1)), "end with a head");
}

TEST(RecomputePass, FullRecomputesEveryLayerButNotEmbeddingAndHead) {
  RankOptions options = small_options(1);
  options.recompute.mode = RecomputeMode::full;
  const std::string text = listing(build_step(small_model(1), options));
  EXPECT_CONTAINS(text, "forward embedding m0 graph");
  EXPECT_CONTAINS(text, "forward layers.0 m0 +bundle layers.0 m0\n");
  EXPECT_CONTAINS(text, "recompute layers.0 m0 graph +graph layers.0 m0\nbackward layers.0 m0");
}

TEST(RecomputePass, EveryNthStartsWithTheFirstLayer) {
  RankOptions options = small_options(2);
  options.recompute.mode = RecomputeMode::every_n;
  options.recompute.n = 2;
  const StepProgram program = build_step(small_model(5), options);
  std::vector<std::string> recomputed;
  for (const Operation& operation : program.operations)
    if (operation.kind == OpKind::recompute) recomputed.push_back(operation_text(program, operation));
  EXPECT_EQ(recomputed,
            (std::vector<std::string>{"recompute layers.4 m0 graph", "recompute layers.2 m0 graph",
                                      "recompute layers.0 m0 graph", "recompute layers.4 m1 graph",
                                      "recompute layers.2 m1 graph", "recompute layers.0 m1 graph"}));
}

TEST(RecomputePass, NamedRegionsShrinkTheGraph) {
  RankOptions options = small_options(1);
  options.recompute.mode = RecomputeMode::regions;
  options.recompute.regions = {"mlp"};
  const StepProgram program = build_step(small_model(1), options);
  EXPECT_EQ(program.blocks[1].recomputed_regions, std::vector<std::string>{"mlp"});
  EXPECT_TRUE(program.blocks[0].recomputed_regions.empty());
  EXPECT_EQ(count(program, OpKind::recompute), 0);
  for (const Buffer& buffer : program.buffers)
    if (buffer.name == "graph layers.0 m0") {
      EXPECT_EQ(buffer.bytes, 16 * (2 + 8 + 8) * 4);  // saved by attention, and the input of mlp
    }
}

TEST(RecomputePass, UnknownNamesAreRefusedWithASuggestion) {
  RankOptions options = small_options(1);
  options.recompute.mode = RecomputeMode::blocks;
  options.recompute.blocks = {"layers.9"};
  EXPECT_CONTAINS(refusal(small_model(), options), "\"layers.9\"");
  options.recompute.blocks = {"head"};
  EXPECT_CONTAINS(refusal(small_model(), options), "\"head\"");
  options.recompute.mode = RecomputeMode::regions;
  options.recompute.regions = {"attentoin"};
  EXPECT_CONTAINS(refusal(small_model(), options), "did you mean \"attention\"");
  options.recompute.mode = RecomputeMode::calls;
  options.recompute.calls = {"swiglu"};
  EXPECT_CONTAINS(refusal(small_model(), options),
                  "call \"swiglu\": the model has no such call; it has operations, attention.norm, "
                  "attention.linear, mlp.linear, mlp.act");
  options.recompute.mode = RecomputeMode::every_n;
  options.recompute.n = 0;
  EXPECT_CONTAINS(refusal(small_model(), options), "at least 1, not 0");
}

/// The final gradient of a unit, as a formula over its micro-batches.
std::string gradient_formula(const StepProgram& program, int unit) {
  std::string gradient;
  std::map<int, std::string> levels;
  int leaf = -1;
  for (const Operation& operation : program.operations) {
    leaf = operation.micro_batch >= 0 ? operation.micro_batch : leaf;
    if (operation.unit != unit) continue;
    if (operation.kind == OpKind::stash_gradient) {
      levels[operation.level] = gradient.empty() ? format("{}", leaf) : gradient;
      gradient.clear();
    } else if (operation.kind == OpKind::add_gradient) {
      const std::string sum = gradient.empty() ? format("{}", leaf) : gradient;
      gradient = format("({}+{})", levels.at(operation.level), sum);
      levels.erase(operation.level);
    }
  }
  EXPECT_TRUE(levels.empty());
  return gradient.empty() ? format("{}", leaf) : gradient;
}

/// The left child is the largest power of two that leaves something to the right.
std::string fixed_tree(int begin, int size) {
  if (size == 1) return format("{}", begin);
  int left = 1;
  while (left * 2 < size) left *= 2;
  return format("({}+{})", fixed_tree(begin, left), fixed_tree(begin + left, size - left));
}

TEST(OrderedPass, SumsAnyNumberOfMicroBatchesByTheFixedTree) {
  for (int micro_batches = 1; micro_batches <= 70; ++micro_batches) {
    RankOptions options = small_options(micro_batches);
    options.ordered = true;
    const StepProgram program = build_step(small_model(1), options);
    for (int unit = 0; unit < 3; ++unit)
      ASSERT_EQ(gradient_formula(program, unit), fixed_tree(0, micro_batches));
  }
}

TEST(OrderedPass, RefusesAUnitOfThreeBlocks) {
  RankOptions options = small_options(2);
  options.ordered = true;
  ModelSpec model = small_model(2, true);
  model.blocks[1].units.push_back(0);
  EXPECT_CONTAINS(message_of<UsageError>([&] { build_step(model, options); }),
                  "more than two blocks use unit embedding");
  model.units[0].trainable = false;
  EXPECT_NO_THROW(build_step(model, options));
}

TEST(OrderedPass, HoldsAtMostLog2OfTheMicroBatchesGradients) {
  for (int micro_batches = 1; micro_batches <= 33; ++micro_batches) {
    RankOptions options = small_options(micro_batches);
    options.ordered = true;
    const StepProgram program = build_step(small_model(1), options);
    int live = 0;
    int most = 0;
    for (const Operation& operation : program.operations) {
      live += find_buffer(program, operation.allocates, BufferKind::gradient_level) >= 0 ? 1 : 0;
      most = std::max(most, live);
      live -= find_buffer(program, operation.frees, BufferKind::gradient_level) >= 0 ? 1 : 0;
    }
    int levels = 0;
    while ((2 << levels) <= micro_batches) ++levels;
    EXPECT_EQ(most, 3 * levels) << micro_batches;
  }
}

StepProgram built_with(ReshardMode reshard, int prefetch) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, reshard, prefetch});
  return build_step(small_model(1), options);
}

std::string gather_listing(const StepProgram& program) {
  std::string text;
  for (const Operation& operation : program.operations) {
    if (operation.lane == Lane::gather || operation.kind == OpKind::gather_wait ||
        operation.kind == OpKind::release || operation.block >= 0) {
      text += operation_text(program, operation) + "\n";
    }
  }
  return text;
}

TEST(GatherPass, Fp32UnitsAreResident) {
  EXPECT_EQ(count(build_step(small_model(), small_options(2)), OpKind::gather_start), 0);
}

TEST(GatherPass, AlwaysGathersAroundEachRunOfUses) {
  EXPECT_EQ(gather_listing(built_with(ReshardMode::always, 0)),
            "gather_start embedding\ngather_wait embedding\nforward embedding m0 graph\nrelease embedding\n"
            "gather_start layers.0\ngather_wait layers.0\nforward layers.0 m0 graph\nrelease layers.0\n"
            "gather_start head\ngather_wait head\nloss_forward_backward head m0\nrelease head\n"
            "gather_start layers.0\ngather_wait layers.0\nbackward layers.0 m0\nrelease layers.0\n"
            "backward embedding m0\n");
}

TEST(GatherPass, NeverReshardingGathersOncePerStep) {
  EXPECT_EQ(gather_listing(built_with(ReshardMode::never, 0)),
            "gather_start embedding\ngather_wait embedding\nforward embedding m0 graph\nrelease embedding\n"
            "gather_start layers.0\ngather_wait layers.0\nforward layers.0 m0 graph\n"
            "gather_start head\ngather_wait head\nloss_forward_backward head m0\nrelease head\n"
            "backward layers.0 m0\nrelease layers.0\nbackward embedding m0\n");
}

TEST(GatherPass, PrefetchStartsTheNextGatherBeforeTheCompute) {
  EXPECT_EQ(
      gather_listing(built_with(ReshardMode::always, 1)),
      "gather_start embedding\ngather_wait embedding\ngather_start layers.0\nforward embedding m0 graph\n"
      "release embedding\ngather_wait layers.0\ngather_start head\nforward layers.0 m0 graph\n"
      "release layers.0\ngather_wait head\ngather_start layers.0\nloss_forward_backward head m0\n"
      "release head\ngather_wait layers.0\nbackward layers.0 m0\nrelease layers.0\nbackward embedding m0\n");
}

TEST(GatherPass, SlotsHaveTheGatherDtype) {
  const StepProgram program = built_with(ReshardMode::never, 0);
  for (const Buffer& buffer : program.buffers)
    if (buffer.kind == BufferKind::gather_slot) {
      EXPECT_EQ(buffer.bytes, flat_layout(small_model(1).units[0]).size * 2);
    }
}

TEST(InsertOperations, RenumbersNeeds) {
  std::vector<Operation> operations(3);
  operations[2].needs = {0, 1};
  insert_operations(operations, {{0, Operation{}}, {1, Operation{}}, {3, Operation{}}});
  ASSERT_EQ(operations.size(), 6U);
  EXPECT_EQ(operations[4].needs, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace stepforge::testing
