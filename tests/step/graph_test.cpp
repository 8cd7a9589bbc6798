// SPDX-License-Identifier: Apache-2.0
// Programs of a model that is not a chain: a value that several blocks take, across stages, and two heads.
#include <gtest/gtest.h>

#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

using K = OpKind;

const BundleEntry kSource{"source", 4};

// Blocks and units.
constexpr int kEmbedding = 0;
constexpr int kLayer1 = 2;
constexpr int kHead = 3;
constexpr int kExtra = 4;

/// The embedding makes a second value, of half the width, which layer 1 and a second head take.
ModelSpec graph_model() {
  ModelSpec model = small_model();
  model.blocks[kEmbedding].outputs.push_back(kSource);
  model.blocks[kLayer1].inputs.push_back(kSource);
  BlockSpec extra = model.blocks[kHead];
  extra.name = "extra";
  extra.units = {kExtra};
  extra.inputs = {kSource};
  model.blocks.push_back(extra);
  model.units.push_back({"extra", {parameter("extra.weight", {32, 4}, ParameterTag::head)}, true});
  return model;
}

Programs one_rank(const RankOptions& options) {
  return programs_of(graph_model(), 1, 1, options);
}

/// The embedding; layer 0; layer 1; the heads.
Programs four_stages(const RankOptions& options) {
  RankOptions unsharded = options;
  unsharded.plan.dims.dp_shard = 1;
  return pipeline_programs(graph_model(), unsharded,
                           make_schedule(ScheduleKind::one_f_one_b, 4, 1, options.micro_batches));
}

std::vector<std::string> value_names(const StepProgram& program, const std::vector<int>& values) {
  std::vector<std::string> names;
  for (const int value : values) names.push_back(element(program.values, value).name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Graph, ABlockTakesWhatTheLastBlockBeforeItMadeUnderThatName) {
  const StepProgram program = one_rank(small_options()).front();
  EXPECT_EQ(value_names(program, program.blocks[0].outputs), (Names{"embedding.hidden", "embedding.source"}));
  EXPECT_EQ(value_names(program, program.blocks[1].inputs), (Names{"embedding.hidden"}));
  EXPECT_EQ(value_names(program, program.blocks[2].inputs), (Names{"layers.0", "embedding.source"}));
  EXPECT_EQ(value_names(program, program.blocks[3].inputs), (Names{"layers.1"}));
  EXPECT_EQ(value_names(program, program.blocks[4].inputs), (Names{"embedding.source"}));
  const ProgramValue& source = element(program.values, element(program.blocks, kLayer1).inputs.at(1));
  EXPECT_EQ(source.consumers, (std::vector<int>{kLayer1, kExtra}));
  EXPECT_EQ(source.bytes(), 16 * 4 * 4);
}

TEST(Graph, ValuesForLaterStagesPassThroughTheStagesBetween) {
  const Programs programs = four_stages(small_options(3));
  ASSERT_NO_THROW(check_programs(programs));
  const StepProgram& middle = programs[1];
  EXPECT_EQ(value_names(middle, middle.blocks.front().arriving),
            (Names{"hidden of layers.0", "source of layers.0"}));
  EXPECT_EQ(value_names(middle, middle.blocks.front().inputs), (Names{"hidden of layers.0"}));
  EXPECT_EQ(value_names(middle, middle.blocks.back().leaving), (Names{"layers.0", "source of layers.0"}));
  const int64_t bytes = 16 * (8 + 4) * 4;
  for (const K kind : {K::receive, K::send, K::receive_gradient, K::send_gradient})
    EXPECT_EQ(middle.operations[find(middle, {kind})].bytes, bytes);
}

TEST(Graph, TheGradientOfAValueIsTheSumOfWhatItsBlocksAdd) {
  const StepProgram program = one_rank(small_options()).front();
  const int source = element(program.blocks, kLayer1).inputs.at(1);
  const auto gradient_in = [&](const Match& match, std::vector<int> Operation::* list) {
    return find_buffer(program, program.operations[find(program, match)].*list, BufferKind::bundle_gradient,
                       source);
  };
  const int buffer = gradient_in({K::loss_forward_backward, -1, kExtra}, &Operation::allocates);
  EXPECT_GE(buffer, 0);
  EXPECT_EQ(gradient_in({K::backward, -1, kLayer1}, &Operation::allocates), -1);
  EXPECT_EQ(gradient_in({K::backward, -1, kLayer1}, &Operation::reads), buffer);
  EXPECT_EQ(gradient_in({K::backward, -1, kEmbedding}, &Operation::frees), buffer);
}

TEST(Graph, SoundProgramsOfEveryScheduleAndOption) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string_view name = kind.name;
    const int per_rank = kind.stages.min;
    for (const int ranks : {1, 2}) {
      for (const bool recomputed : {false, true}) {
        RankOptions options = small_options(3);
        options.plan.dims.dp_shard = 2;
        options.recompute.mode = recomputed ? RecomputeMode::full : RecomputeMode::none;
        const Schedule schedule = make_schedule(kind, ranks, per_rank, 3);
        EXPECT_NO_THROW(check_programs(pipeline_programs(graph_model(), options, schedule))) << name << ranks;
      }
    }
  }
}

TEST(Graph, WithoutTrainingOnlyTheFirstHeadRuns) {
  for (const ProgramKind kind : {ProgramKind::evaluate, ProgramKind::generate}) {
    RankOptions options = small_options();
    options.kind = kind;
    ModelSpec model = graph_model();
    const K loss = kind == ProgramKind::evaluate ? K::loss : K::logits;
    const Programs programs = programs_of(model, 1, 1, options);
    EXPECT_NO_THROW(check_programs(programs));
    const StepProgram& program = programs.front();
    EXPECT_EQ(std::ranges::count(program.operations, loss, &Operation::kind), 1);
    EXPECT_EQ(program.operations[find(program, {loss})].block, kHead);
  }
}

TEST(Graph, RefusesEdgesThatDoNotFit) {
  const auto message = [](auto change) {
    ModelSpec model = graph_model();
    change(model);
    return message_of<UsageError>([&] { programs_of(model, 1, 1, small_options()); });
  };
  EXPECT_CONTAINS(message([](ModelSpec& m) { m.blocks[kEmbedding].outputs.pop_back(); }),
                  "block layers.1 takes the value source, which no block before it makes");
  EXPECT_CONTAINS(message([](ModelSpec& m) { m.blocks[kLayer1].inputs.back().width = 8; }),
                  "block layers.1 takes the value source with width 8, but it has width 4");
  EXPECT_CONTAINS(message([](ModelSpec& m) { m.blocks[1].outputs.push_back({"lost", 8}); }),
                  "no block takes the value layers.0.lost");
}

std::vector<Fault> faults() {
  const RankOptions two = small_options(2);
  return {
      {"ABackwardRunsBeforeAllHaveAdded", one_rank, two, 0,
       [](StepProgram& p) {
         move(p, find(p, {K::backward, -1, kEmbedding, 0}), find(p, {K::backward, -1, kLayer1, 0}));
       },
       0, "backward embedding m0", "the gradient of value embedding.hidden on micro-batch 0 has not been"},
      {"AHeadAddsAfterwards", one_rank, two, 0,
       [](StepProgram& p) {
         move(p, find(p, {K::loss_forward_backward, -1, kExtra, 0}),
              find(p, {K::backward, -1, kEmbedding, 0}) + 1);
       },
       0, "loss_forward_backward extra m0",
       "the gradient of value embedding.source on micro-batch 0 was already used"},
      {"ABlockDoesNotAdd", one_rank, two, 0,
       [](StepProgram& p) {
         Operation& layer = at(p, {K::backward, -1, kLayer1, 0});
         std::erase(layer.reads, find_buffer(p, layer.reads, BufferKind::bundle_gradient,
                                             element(p.blocks, kLayer1).inputs.at(1)));
       },
       0, "backward layers.1 m0", "it does not list buffer bundle_gradient embedding.source m0"},
      {"AHeadDoesNotRun", one_rank, two, 0,
       [](StepProgram& p) {
         Operation& layer = at(p, {K::backward, -1, kLayer1, 0});
         const Operation& loss = at(p, {K::loss_forward_backward, -1, kExtra, 0});
         layer.allocates.insert(layer.allocates.end(), loss.allocates.begin(), loss.allocates.end());
         erase(p, find(p, {K::loss_forward_backward, -1, kExtra, 0}));
       },
       0, "gradient_norm", "unit extra: the gradient of block extra on micro-batch 0 is missing"},
      {"AValueIsForgottenInAMessage", four_stages, two, 1,
       [](StepProgram& p) {
         p.blocks.back().leaving.pop_back();
         for (const K kind : {K::send, K::receive_gradient})
           for (Operation& operation : p.operations)
             if (operation.kind == kind) operation.bytes -= 16 * 4 * 4;
       },
       1, "send_gradient layers.0 m0",
       "the gradient of value source of layers.0 on micro-batch 0 has not been"},
  };
}

class PlantedInGraph : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedInGraph, IsFound) {
  expect_found(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedInGraph, ::testing::ValuesIn(faults()),
                         [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace stepforge::testing
