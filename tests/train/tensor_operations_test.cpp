// SPDX-License-Identifier: Apache-2.0
// A family whose layers are tensor operations only, without the functions of nn/: autograd trains it.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/modelspec/calls/operations.h"
#include "stepforge/nn/autograd_block.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kWidth = 24;
constexpr int64_t kVocabulary = 257;  // the tokenizer's

ParameterSpec spread(const std::string& name, std::vector<int64_t> shape, ParameterTag tag) {
  const int64_t rows = shape.at(0);
  return {name, std::move(shape), {{"weight", name, rows, {Initializer::Kind::normal, 0.3}}}, tag};
}

/// One call of a layer of your own, by `rule` and `weights`: from `inputs` values of kWidth to `made`, of which the last one is
/// what autograd keeps besides.
CallList operations(TypeRule rule, const std::vector<CallWeight>& weights, size_t inputs,
                    const std::vector<LayerValue>& made, double flops) {
  ListWriter list("own");
  std::vector<int> operands;
  for (size_t i = 0; i < inputs; ++i) operands.push_back(list.input({"x", kWidth}));
  list.add({.kind = &kOperations,
            .name = "call",
            .operands = std::move(operands),
            .weights = weights,
            .attributes = OperationsAttributes{
                .rule = rule,
                .results = made,
                .derivative_reads = {.operands = (1U << inputs) - 1, .results = 1U << (made.size() - 1)},
                .flops = flops}});
  std::vector<int> outputs = list.results();
  outputs.pop_back();
  return list.finish(std::move(outputs));
}

LayerValue kept(int64_t width, ElementType type = ElementType::compute) {
  return {.name = "", .width = width, .type = type, .differentiable = false};
}

/// Keeps the tokens as 64-bit integers.
CallList lookup_of(const std::string& table, size_t outputs) {
  std::vector<LayerValue> made(outputs, {"", kWidth});
  made.push_back(kept(2, ElementType::fp32));
  return operations(TypeRule::lookup, {{table, {kVocabulary, kWidth}}}, 0, made, 0);
}

CallList layer_of(size_t inputs) {
  return operations(TypeRule::linear, {{"layers.0.weight", {kWidth, kWidth}}, {"layers.0.bias", {kWidth}}},
                    inputs, {{"", kWidth}, kept(kWidth)}, 2.0 * kWidth * kWidth);
}

/// Keeps logarithms of probabilities.
CallList loss_of(const std::string& weight) {
  return operations(
      TypeRule::loss, {{weight, {kVocabulary, kWidth}}}, 1,
      {{.name = "", .width = 1, .type = ElementType::fp32}, kept(kVocabulary, ElementType::fp32)},
      2.0 * kWidth * kVocabulary);
}

enum class Shape {
  untied,
  tied,
  graph  ///< the layer and a second head take the embedding's second output too
};

constexpr double kSecondWeight = 0.5;

ModelSpec operations_spec(Shape shape) {
  const bool tied = shape == Shape::tied;
  const BundleEntry stream{"hidden", kWidth};
  const std::string output = tied ? "embedding.weight" : "head.weight";
  ModelSpec spec;
  spec.family = "operations";
  spec.vocab_size = kVocabulary;
  spec.width = kWidth;
  spec.layers = 1;
  spec.max_position = 4096;
  spec.units = {{"embedding", {spread("embedding.weight", {kVocabulary, kWidth}, ParameterTag::matrix)}},
                {"layers.0",
                 {spread("layers.0.weight", {kWidth, kWidth}, ParameterTag::matrix),
                  spread("layers.0.bias", {kWidth}, ParameterTag::bias)}}};
  spec.blocks = {
      {"embedding",
       BlockKind::embedding,
       -1,
       {0},
       {},
       {stream},
       lookup_of("embedding.weight", shape == Shape::graph ? 2 : 1)},
      {"layers.0", BlockKind::layer, 0, {1}, {stream}, {stream}, layer_of(shape == Shape::graph ? 2 : 1)},
      {"head", BlockKind::head, -1, {tied ? 0 : 2}, {stream}, {}, loss_of(output)}};
  if (tied) {
    spec.ties = {{"embedding.weight", "head", "head.weight"}};
  } else {
    spec.units.push_back({"head", {spread("head.weight", {kVocabulary, kWidth}, ParameterTag::matrix)}});
  }
  if (shape == Shape::graph) {
    const BundleEntry source{"source", kWidth};
    spec.blocks[0].outputs.push_back(source);
    spec.blocks[1].inputs.push_back(source);
    spec.units.push_back({"extra", {spread("extra.weight", {kVocabulary, kWidth}, ParameterTag::matrix)}});
    spec.blocks.push_back({"extra", BlockKind::head, -1, {3}, {source}, {}, loss_of("extra.weight")});
    spec.blocks.back().loss_weight = kSecondWeight;
  }
  return spec;
}

at::Tensor embedded(const at::Tensor& table, const at::Tensor& tokens) {
  return at::embedding(table, tokens.to(at::kLong));
}

at::Tensor layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return x + at::tanh(at::linear(x, weight, bias));
}

at::Tensor token_losses(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels) {
  return at::cross_entropy_loss(at::linear(x, weight).to(at::promote_types(x.scalar_type(), at::kFloat)),
                                labels.to(at::kLong), {}, at::Reduction::None, kIgnoredLabel);
}

class Embedding : public AutogradBlock {
 public:
  Embedding(Parameter& table, size_t outputs) : table_(table), outputs_(outputs) {}
  Bundle compute(const Bundle&, const Context& context) override {
    return Bundle(outputs_, embedded(table_.value(), context.batch->tokens));
  }

 private:
  Parameter& table_;
  size_t outputs_;
};

class Layer : public AutogradBlock {
 public:
  Layer(Parameter& weight, Parameter& bias) : weight_(weight), bias_(bias) {}
  Bundle compute(const Bundle& inputs, const Context&) override {
    const at::Tensor made = layer(inputs.at(0), weight_.value(), bias_.value());
    return {inputs.size() == 1 ? made : made * inputs[1]};
  }

 private:
  Parameter& weight_;
  Parameter& bias_;
};

class OutputHead : public Head {
 public:
  explicit OutputHead(Parameter& weight) : weight_(weight) {}
  LossResult loss_with_gradients(const Bundle& inputs, const Context& context,
                                 const at::Tensor& scale) override {
    const at::AutoGradMode mode(true);
    const at::Tensor x = inputs.at(0).detach().requires_grad_(true);
    const at::Tensor losses = token_losses(x, weight_.value(), context.batch->labels);
    torch::autograd::backward({(losses * scale).sum()}, {});
    return {losses.detach(), at::Tensor(), {x.grad()}};
  }
  LossResult loss(const Bundle& inputs, const Context& context, bool) override {
    return {token_losses(inputs.at(0), weight_.value(), context.batch->labels).detach(), at::Tensor(), {}};
  }
  at::Tensor last_logits(const Bundle& inputs, const Context&) override {
    return at::linear(inputs.at(0), weight_.value());
  }

 private:
  Parameter& weight_;
};

std::string output_of(Shape shape) {
  return shape == Shape::tied ? "embedding.weight" : "head.weight";
}

void use_operations(TestRun& run, Shape shape) {
  run.trainer().replace_build_step("job", [shape](Trainer& trainer) {
    const ModelSpec spec = operations_spec(shape);
    trainer.job = plan_job(trainer.config, trainer.place, spec, spec);
  });
  run.trainer().replace_build_step("model", [shape](Trainer& trainer) {
    const auto parameter = trainer.store->lookup();
    trainer.model.blocks.push_back(
        std::make_unique<Embedding>(parameter("embedding.weight"), shape == Shape::graph ? 2 : 1));
    trainer.model.blocks.push_back(
        std::make_unique<Layer>(parameter("layers.0.weight"), parameter("layers.0.bias")));
    trainer.model.heads.push_back(std::make_unique<OutputHead>(parameter(output_of(shape))));
    if (shape == Shape::graph)
      trainer.model.heads.push_back(std::make_unique<OutputHead>(parameter("extra.weight")));
  });
}

class TensorOperations : public ::testing::TestWithParam<Shape> {};

TEST_P(TensorOperations, GradientsAreThoseOfAutogradOverAllMicroBatches) {
  const TempFolder folder;
  const Shape shape = GetParam();
  TestRun run(job(folder, "one", {"training.steps=1", "training.max_norm=0"}));
  use_operations(run, shape);
  std::vector<std::string> names = {"embedding.weight", "layers.0.weight", "layers.0.bias", output_of(shape)};
  if (shape == Shape::graph) names.emplace_back("extra.weight");
  std::map<std::string, at::Tensor> leaves;
  run.trainer().add_callback(std::make_unique<CallAtStart>([&](Trainer& trainer) {
    for (const std::string& name : names)
      leaves[name] = trainer.store->parameter(name).value().detach().to(at::kDouble).requires_grad_(true);
  }));
  const Records records = run.run();
  const BatchTensors batch(run.trainer().data.train->rows(0, 8));
  const at::Tensor source = embedded(leaves.at("embedding.weight"), batch.tokens);
  at::Tensor x = layer(source, leaves.at("layers.0.weight"), leaves.at("layers.0.bias"));
  if (shape == Shape::graph) x = x * source;
  at::Tensor losses = token_losses(x, leaves.at(output_of(shape)), batch.labels);
  if (shape == Shape::graph)
    losses = losses + kSecondWeight * token_losses(source, leaves.at("extra.weight"), batch.labels);
  const at::Tensor loss = losses.sum() / static_cast<double>(batch.host.valid_labels);
  EXPECT_NEAR(records.at(0).loss, loss.item<double>(), 1e-5);
  torch::autograd::backward({loss}, {});
  for (const auto& [name, leaf] : leaves) {
    const at::Tensor gradient = run.trainer().store->parameter(name).gradient().to(at::kDouble);
    EXPECT_GT(leaf.grad().norm().item<double>(), 1e-3) << name;
    EXPECT_LE((gradient - leaf.grad()).norm().item<double>(), 1e-6 * leaf.grad().norm().item<double>())
        << name;
  }
}

TEST_P(TensorOperations, TrainOnSeveralRanksToTheBitsOfOne) {
  const TempFolder folder;
  for (const char* compute : {"fp32", "bf16"}) {
    for (const char* replicas : {"1", "2"}) {
      const std::string name = format("{}-{}", compute, replicas);
      const Strings args =
          job(folder, name, {"training.reduction=ordered", format("precision.compute={}", compute)});
      TestRun one(args + Strings{format("run_dir={}", (folder / (name + "-one")).string())});
      use_operations(one, GetParam());
      const Records expected = one.run();
      RankThreads ranks(4);
      const std::vector<Records> many = ranks.run(
          [&](int) {
            return args + Strings{format("parallelism.data_parallel_replicate_degree={}", replicas)};
          },
          [&](TestRun& run, int) { use_operations(run, GetParam()); });
      for (const std::string& failure : ranks.failures) EXPECT_EQ(failure, "");
      expect_same_numbers(many, expected, name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorOperations,
                         ::testing::Values(Shape::untied, Shape::tied, Shape::graph), [](const auto& info) {
                           return info.param == Shape::untied ? "untied"
                                  : info.param == Shape::tied ? "tied"
                                                              : "graph";
                         });

}  // namespace
}  // namespace stepforge::testing
