// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/pipeline_stages.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/small_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Costs = std::vector<double>;
using Stages = std::vector<int>;

ModelSpec decoder(int64_t layers, int64_t vocab_size = 257) {
  ModelConfig model = small_model("llama", 4, 2);
  model.n_layers = layers;
  model.vocab_size = vocab_size;
  return model_spec(model);
}

/// With equal costs of all layers and none of embedding and head.
Stages cut(int64_t layers, const StagePlan& plan) {
  const ModelSpec whole = decoder(layers);
  Costs costs(whole.blocks.size(), 1.0);
  costs.front() = costs.back() = 0.0;
  return stages_of_blocks(whole, plan, costs);
}

std::string refusal(int64_t layers, const StagePlan& plan) {
  return message_of<UsageError>([&] { cut(layers, plan); });
}

double largest_sum(const Stages& stages, const Costs& costs) {
  Costs sums(static_cast<size_t>(stages.back()) + 1);
  for (size_t i = 0; i < costs.size(); ++i) sums[static_cast<size_t>(stages[i])] += costs[i];
  return std::ranges::max(sums);
}

/// By trying all cuts.
double smallest_largest_sum(const Costs& costs, size_t begin, int parts) {
  double sum = 0.0;
  if (parts == 1) {
    for (size_t i = begin; i < costs.size(); ++i) sum += costs[i];
    return sum;
  }
  double best = 1e300;
  for (size_t end = begin + 1; end + static_cast<size_t>(parts) - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, smallest_largest_sum(costs, end, parts - 1)));
  }
  return best;
}

void expect_consecutive(const Stages& stages, int count) {
  EXPECT_EQ(stages.front(), 0);
  EXPECT_EQ(stages.back(), count - 1);
  for (size_t i = 1; i < stages.size(); ++i)
    EXPECT_TRUE(stages[i] == stages[i - 1] || stages[i] == stages[i - 1] + 1);
}

TEST(PipelineStages, TheMostExpensiveStageIsAsCheapAsAnyCutMakesIt) {
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same costs in every run
  for (int round = 0; round < 300; ++round) {
    const ModelSpec whole = decoder(static_cast<int64_t>(1 + random() % 7));
    Costs costs;
    for (size_t i = 0; i < whole.blocks.size(); ++i) costs.push_back(static_cast<double>(random() % 9));
    for (int stages = 1; stages <= std::ssize(costs); ++stages) {
      const Stages cuts = stages_of_blocks(whole, {.stages = stages}, costs);
      expect_consecutive(cuts, stages);
      EXPECT_EQ(largest_sum(cuts, costs), smallest_largest_sum(costs, 0, stages));
    }
  }
}

TEST(PipelineStages, OfEquallyGoodCutsEarlyStagesGetLess) {
  EXPECT_EQ(cut(5, {.stages = 2}), (Stages{0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(cut(4, {.stages = 2}), (Stages{0, 0, 0, 1, 1, 1}));
}

/// By trying all cuts: the smallest largest stage of those within the tolerance, and of these the cheapest.
TEST(PipelineStages, OfCutsThatCostNearlyTheSameTheSmallestIsTaken) {
  std::mt19937 random(5);  // NOLINT(cert-msc51-cpp): the same costs in every run
  const ModelSpec whole = decoder(5);
  for (int round = 0; round < 200; ++round) {
    Costs costs;
    StageMemory memory;
    for (size_t i = 0; i < whole.blocks.size(); ++i) {
      costs.push_back(static_cast<double>(100 + random() % 3));
      memory.state.push_back(static_cast<double>(random() % 50));
      memory.activations.push_back(static_cast<double>(random() % 50));
    }
    memory.alive = {3, 2, 1};
    const auto amounts = [&](size_t first, size_t second) {
      const std::vector<size_t> borders = {0, first, second, costs.size()};
      std::pair<double, double> largest{0, 0};
      for (size_t stage = 0; stage < 3; ++stage) {
        std::pair<double, double> sum{0, 0};
        for (size_t i = borders[stage]; i < borders[stage + 1]; ++i) {
          sum.first += costs[i];
          sum.second += memory.state[i] + memory.alive[stage] * memory.activations[i];
        }
        largest = {std::max(largest.first, sum.first), std::max(largest.second, sum.second)};
      }
      return largest;
    };
    double cheapest = 1e300;
    std::pair<double, double> best{1e300, 1e300};  // memory, cost
    for (const bool choose : {false, true}) {
      for (size_t first = 1; first < costs.size() - 1; ++first) {
        for (size_t second = first + 1; second < costs.size(); ++second) {
          const auto [cost, bytes] = amounts(first, second);
          if (!choose)
            cheapest = std::min(cheapest, cost);
          else if (cost <= cheapest * (1 + kStageCostTolerance))
            best = std::min(best, {bytes, cost});
        }
      }
    }
    const Stages cuts = stages_of_blocks(whole, {.stages = 3}, costs, memory);
    const auto first = static_cast<size_t>(std::ranges::count(cuts, 0));
    const auto [cost, bytes] = amounts(first, first + static_cast<size_t>(std::ranges::count(cuts, 1)));
    EXPECT_EQ(std::pair(bytes, cost), best) << round;
  }
}

TEST(PipelineStages, CostsAreForwardAndBackwardOfEachBlockAndTheHeadCounts) {
  const ModelSpec whole = decoder(6, 1000);
  const Costs flops = block_flops(whole, 64);
  EXPECT_EQ(flops.front(), 0.0);
  EXPECT_EQ(flops.back(), 6.0 * static_cast<double>(whole.find_parameter("head.weight")->elements()));
  for (size_t layer = 2; layer <= 6; ++layer) EXPECT_EQ(flops[layer], flops[1]);
  EXPECT_GT(block_flops(whole, 128)[1], flops[1]);  // attention to more keys
  EXPECT_EQ(block_flops(whole, 128).back(), flops.back());
  const Stages stages = stages_of_blocks(whole, {.stages = 2}, flops);
  EXPECT_EQ(largest_sum(stages, flops), smallest_largest_sum(flops, 0, 2));
  EXPECT_EQ(stages, (Stages{0, 0, 0, 0, 0, 1, 1, 1}));  // the head costs two layers
}

// Recorded from generate_llm_fqn_per_model_part of torchtitan.
TEST(PipelineStages, LayersAreCountedAsTorchtitanCountsThem) {
  const StagePlan less_by_one = {.stages = 4, .first_stage_less_layers = 1, .last_stage_less_layers = 1};
  EXPECT_EQ(cut(6, less_by_one), (Stages{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(cut(7, less_by_one), (Stages{0, 0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(cut(8, less_by_one), (Stages{0, 0, 0, 1, 1, 1, 2, 2, 3, 3}));
  const StagePlan plain = {.stages = 3, .first_stage_less_layers = 0, .last_stage_less_layers = 0};
  EXPECT_EQ(cut(7, plain), (Stages{0, 0, 0, 0, 1, 1, 2, 2, 2}));
  const StagePlan twice = {.stages = 2, .first_stage_less_layers = 2, .last_stage_less_layers = 2};
  EXPECT_EQ(cut(3, twice), (Stages{0, 0, 0, 1, 1}));
  // One number is 1 unless it is set.
  EXPECT_EQ(cut(4, {.stages = 3, .first_stage_less_layers = 2}), (Stages{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(cut(3, {.stages = 1, .first_stage_less_layers = 2}), (Stages{0, 0, 0, 0, 0}));
}

TEST(PipelineStages, AStageMayBeTheEmbeddingOrTheHeadAlone) {
  EXPECT_EQ(cut(2, {.stages = 4, .layers_per_stage = 1}), (Stages{0, 1, 2, 3}));
  EXPECT_EQ(cut(2, {.stages = 4}), (Stages{0, 1, 2, 3}));
}

TEST(PipelineStages, LayersPerStageGiveTheNumberOfStages) {
  const ModelSpec whole = decoder(8);
  EXPECT_EQ(planned_stages(whole, {.layers_per_stage = 5}), 2);  // 8 layers and 1 for either end
  EXPECT_EQ(planned_stages(whole, {.layers_per_stage = 3}), 4);
  EXPECT_EQ(planned_stages(
                whole, {.layers_per_stage = 4, .first_stage_less_layers = 0, .last_stage_less_layers = 0}),
            2);
  EXPECT_EQ(planned_stages(whole, {.stages = 3}), 3);
  EXPECT_EQ(cut(8, {.layers_per_stage = 3}), (Stages{0, 0, 0, 1, 1, 1, 2, 2, 3, 3}));
  EXPECT_CONTAINS(refusal(8, {.stages = 2, .layers_per_stage = 3}), "2 pipeline stages, but",
                  "pipeline_parallel_layers_per_stage = 3 makes 4 of 8 layers, 1 for the embedding",
                  "1 for the head");
}

TEST(PipelineStages, MoreStagesThanBlocksAreRefused) {
  EXPECT_CONTAINS(refusal(2, {.stages = 5}), "5 pipeline stages for 4 blocks (embedding, 2 layers, head)",
                  "a smaller parallelism.pipeline_parallel_degree");
  EXPECT_CONTAINS(refusal(2, {}), "0 pipeline stages");
}

TEST(PipelineStages, EndsThatCountForMoreThanAStageAreRefused) {
  EXPECT_CONTAINS(refusal(4, {.stages = 4, .first_stage_less_layers = 3}),
                  "4 pipeline stages have 2 layers each, of 8: 4 layers, 3 for the embedding",
                  "use fewer stages, or smaller numbers");
  EXPECT_CONTAINS(refusal(4, {.stages = 4, .last_stage_less_layers = 3}), "3 for the head");
  EXPECT_CONTAINS(refusal(4, {.stages = 6, .first_stage_less_layers = 0, .last_stage_less_layers = 0}),
                  "6 pipeline stages have 0 layers each, of 4");
  EXPECT_CONTAINS(refusal(4, {.stages = 2, .first_stage_less_layers = -1}),
                  "first_stage_less_layers = -1 is not between 0 and the 4 layers");
  EXPECT_CONTAINS(refusal(4, {.stages = 2, .last_stage_less_layers = 5}),
                  "last_stage_less_layers = 5 is not between 0 and the 4 layers");
}

TEST(PipelineStages, ListsOfBlocksAreTakenAsTheyAre) {
  const StagePlan plan = {.blocks = {{"embedding"}, {"layers.0", "layers.1", "layers.2"}, {"head"}}};
  EXPECT_EQ(cut(3, plan), (Stages{0, 1, 1, 1, 2}));
  EXPECT_EQ(planned_stages(decoder(3), plan), 3);
}

TEST(PipelineStages, ListsThatAreNotAllBlocksInOrderAreRefused) {
  EXPECT_CONTAINS(refusal(2, {.blocks = {{"embedding", "layers.0"}, {"head"}}}),
                  "pipeline_parallel_stages: \"layers.1\" is in no stage");
  EXPECT_CONTAINS(refusal(2, {.blocks = {{"embedding", "layers.1"}, {"layers.0", "head"}}}),
                  "\"layers.1\" is at the place of \"layers.0\"");
  EXPECT_CONTAINS(refusal(1, {.blocks = {{"embedding", "layers.0"}, {"layers.0", "head"}}}),
                  "\"layers.0\" is named in stage 0 and again in stage 1");
  EXPECT_CONTAINS(refusal(2, {.blocks = {{"embedding", "layer.0"}, {"layers.1", "head"}}}),
                  "the model has no block \"layer.0\"", "\"layers.0\" to \"layers.1\"");
  EXPECT_CONTAINS(refusal(1, {.blocks = {{"embedding", "layers.0", "head"}, {}}}), "stage 1 has no block");
  EXPECT_CONTAINS(refusal(1, {.stages = 4, .blocks = {{"embedding", "layers.0"}, {"head"}}}),
                  "4 pipeline stages, but parallelism.pipeline_parallel_stages lists the blocks of 2");
}

TEST(PipelineStages, AreSetOnAModelOfAsManyBlocks) {
  ModelSpec whole = decoder(1);
  set_stages(whole, Stages{0, 1, 1});
  EXPECT_EQ(whole.blocks[0].stage, 0);
  EXPECT_EQ(whole.blocks[1].stage, 1);
  EXPECT_EQ(whole.blocks[2].stage, 1);
  EXPECT_CONTAINS(message_of<Error>([&] { set_stages(whole, Stages{0, 1}); }), "2 stages for 3 blocks");
}

}  // namespace
}  // namespace stepforge::testing
