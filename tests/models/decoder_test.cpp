// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/pipeline_stages.h"
#include "stepforge/kernels/scalars.h"
#include "stepforge/modelspec/stage_part.h"
#include "stepforge/nn/make_model.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

/// What one rank of a pipeline holds of a model, with storage and forward code.
struct Part {
  Part(const ModelConfig& config, const ModelSpec& part_spec)
      : spec(part_spec),
        store(spec.units, rank_layout(spec.units)),
        model(make_model(spec, store.lookup(), {.context_length = config.max_position})) {
    store.initialize(7);
    for (size_t u = 0; u < store.size(); ++u) store.unit(u).start_gradient();
  }

  ModelSpec spec;
  ModelStore store;
  Model model;
};

ModelSpec in_stages(const ModelConfig& config, const std::vector<int>& stages) {
  ModelSpec spec = model_spec(config);
  set_stages(spec, stages);
  return spec;
}

/// The blocks of a step in the order of the model, whichever part has them.
class Chain {
 public:
  Chain(const ModelConfig& config, const ModelSpec& whole,
        const std::vector<std::vector<int>>& stages_of_rank) {
    for (const std::vector<int>& stages : stages_of_rank)
      parts_.push_back(std::make_unique<Part>(config, stage_part(whole, stages)));
  }

  /// Runs forward, loss and backward; returns the loss of each token.
  at::Tensor run(const ModelSpec& whole, const Context& context) {
    std::vector<at::Tensor> inputs;
    std::vector<Bundle> outputs;
    Bundle passed;
    for (const BlockSpec& block : whole.blocks) {
      if (block.kind == BlockKind::head) continue;
      outputs.push_back(forward_in_graph(*block_of(block), passed, context));
      inputs.push_back(outputs.back().at(0).detach().requires_grad_());
      passed = {inputs.back()};
    }
    LossResult loss = head().loss_with_gradients({passed.at(0).detach()}, context, scalar(1));
    at::Tensor gradient = loss.input_gradients.at(0);
    for (size_t b = outputs.size(); b-- > 0;) {
      torch::autograd::backward({outputs[b].at(0)}, {gradient});
      if (b > 0) gradient = inputs[b - 1].grad();
    }
    return loss.token_loss;
  }

  /// The gradients of each unit, of every part that has it.
  std::map<std::string, std::vector<at::Tensor>> gradients() const {
    std::map<std::string, std::vector<at::Tensor>> found;
    for (const auto& part : parts_) {
      for (size_t u = 0; u < part->store.size(); ++u)
        if (part->store.unit(u).trained())
          found[part->spec.units[u].name].push_back(part->store.unit(u).gradient());
    }
    return found;
  }

  const std::vector<std::unique_ptr<Part>>& parts() const { return parts_; }

 private:
  Block* block_of(const BlockSpec& wanted) const {
    for (const auto& part : parts_) {
      for (size_t b = 0; b < part->spec.blocks.size(); ++b)
        if (part->spec.blocks[b].name == wanted.name) return part->model.blocks.at(b).get();
    }
    throw Error("no part has the block " + wanted.name);
  }

  Head& head() const {
    for (const auto& part : parts_)
      if (!part->model.heads.empty()) return *part->model.heads.front();
    throw Error("no part has the head");
  }

  std::vector<std::unique_ptr<Part>> parts_;
};

class DecoderParts : public ::testing::TestWithParam<std::string> {};

TEST_P(DecoderParts, ComputeTheBitsOfTheWholeWithDropout) {
  const ModelConfig config = tiny_config(GetParam());
  const ModelSpec whole = in_stages(config, {0, 1, 2, 3});
  const BatchTensors batch(made_up_batch(2, 16, config.vocab_size));
  Context context;
  context.batch = &batch;
  context.dropout = 0.2;
  context.dropout_key.key = 5;
  Chain one(config, whole, {{0, 1, 2, 3}});
  const at::Tensor loss = one.run(whole, context);
  Context plain = context;
  plain.dropout = 0.0;
  EXPECT_FALSE(at::equal(Chain(config, whole, {{0, 1, 2, 3}}).run(whole, plain), loss));
  for (const auto& stages_of_rank : std::vector<std::vector<std::vector<int>>>{
           {{0, 1}, {2, 3}}, {{0}, {1}, {2}, {3}}, {{0, 3}, {1, 2}}, {{0, 2}, {1, 3}}}) {
    Chain parts(config, whole, stages_of_rank);
    EXPECT_TRUE(at::equal(parts.run(whole, context), loss));
    const auto gradients = parts.gradients();
    for (const auto& [unit, expected] : one.gradients()) {
      ASSERT_EQ(gradients.at(unit).size(), 1U) << unit;
      EXPECT_TRUE(at::equal(gradients.at(unit)[0], expected[0])) << unit;
    }
  }
}

TEST_P(DecoderParts, TheCopiesOfATiedEmbeddingHaveGradientsThatAddUp) {
  const ModelConfig config = tiny_config(GetParam(), /*tied=*/true);
  const ModelSpec whole = in_stages(config, {0, 0, 1, 1});
  const BatchTensors batch(made_up_batch(2, 16, config.vocab_size));
  Context context;
  context.batch = &batch;
  Chain one(config, whole, {{0, 1}});
  Chain two(config, whole, {{0}, {1}});
  EXPECT_TRUE(at::equal(two.run(whole, context), one.run(whole, context)));
  const std::vector<at::Tensor> copies = two.gradients().at("embedding");
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_TRUE(at::allclose(copies[0] + copies[1], one.gradients().at("embedding")[0], 1e-5, 1e-6));
  EXPECT_GT(copies[0].norm().item<float>(), 0.0F);
  EXPECT_GT(copies[1].norm().item<float>(), 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderParts, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return info.param; });

TEST(Decoder, BuildsTheBlocksOfItsPartOnly) {
  const ModelConfig config = tiny_config();
  const Chain parts(config, in_stages(config, {0, 0, 1, 1}), {{0}, {1}});
  EXPECT_EQ(parts.parts()[0]->model.blocks.size(), 2U);
  EXPECT_TRUE(parts.parts()[0]->model.heads.empty());
  EXPECT_EQ(parts.parts()[1]->model.blocks.size(), 1U);
  EXPECT_FALSE(parts.parts()[1]->model.heads.empty());
}

}  // namespace
}  // namespace stepforge::testing
