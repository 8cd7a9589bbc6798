// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: outputs, gradients and reports against plain fp64 tensor operations under libtorch's autograd.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "stepforge/storage/queued_backward.h"
#include "tests/nn/expert_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

constexpr double kExpertTolerance = 8e-6;
constexpr int64_t kExpertRows = 2;
constexpr int64_t kExpertLength = 40;
constexpr double kLossScale = 0.125;

Batch made_up_labels() {
  Batch batch = made_up_batch(kExpertRows, kExpertLength, 96);
  mask_labels(batch, [](size_t i) { return i % 7 == 2; });
  return batch;
}

at::Tensor leaf_copy(const at::Tensor& values) {
  at::Tensor tensor = values.clone();
  tensor.set_requires_grad(true);
  return tensor;
}

class Experts : public ::testing::Test {
 protected:
  explicit Experts(const ExpertCase& layer_case = expert_cases().front())
      : layer_case(layer_case), model(layer_case), batch(made_up_labels()), step(scalar(kLossScale), batch) {
    context.batch = &batch;
    context.routers = &step;
  }

  at::Tensor input() const { return random_tensor({kExpertRows * kExpertLength, layer_case.dims.width}, 1); }
  at::Tensor cotangent() const {
    return random_tensor({kExpertRows * kExpertLength, layer_case.dims.width}, 2);
  }

  struct Run {
    at::Tensor out;
    at::Tensor x_gradient;
    at::Tensor gradient;  ///< of the unit
  };
  /// One forward and backward, with a step of its own.
  Run run(ExpertModel& of) {
    RouterStep own(scalar(kLossScale), batch);
    Context with_step = context;
    with_step.routers = &own;
    of.store.unit(0).start_gradient();
    const at::Tensor x = leaf_copy(input());
    const at::Tensor out = of.forward(x, with_step);
    torch::autograd::backward({out}, {cotangent()});
    return {out.detach().clone(), x.grad(), of.store.unit(0).gradient().clone()};
  }

  ExpertCase layer_case;
  ExpertModel model;
  BatchTensors batch;
  RouterStep step;
  Context context;
};

void expect_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

class EachExpertLayer : public Experts, public ::testing::WithParamInterface<ExpertCase> {
 protected:
  EachExpertLayer() : Experts(GetParam()) {}
};

TEST_P(EachExpertLayer, MatchesAutogradWithTheLossesOfItsRouter) {
  const at::Tensor x = leaf_copy(input());
  const at::Tensor x64 = leaf64(x);
  ReferenceExperts reference(layer_case, model);
  at::Tensor losses = at::zeros({}, at::kDouble);
  const at::Tensor expected = reference.forward(x64, step, losses);
  torch::autograd::backward({(expected * cotangent().to(at::kDouble)).sum() + losses * kLossScale});
  const at::Tensor out = model.forward(x, context);
  torch::autograd::backward({out}, {cotangent()});
  expect_near(out, expected, kExpertTolerance, "out");
  expect_near(x.grad(), x64.grad(), kExpertTolerance, "x");
  EXPECT_EQ(reference.weights().size(), model.spec.parameters.size());
  for (const auto& [name, weight] : reference.weights())
    expect_near(model.parameter(name).gradient(), weight.grad(), kExpertTolerance, name.c_str());

  const RouterReport& report = step.report_of(0);
  const at::Tensor aux =
      (report.losses *
       at::tensor({layer_case.router.balance_weight, layer_case.router.z_weight}, at::kDouble))
          .sum();
  EXPECT_NEAR(aux.item<double>(), losses.item<double>(), 1e-5 * (1.0 + losses.item<double>()));
  const at::Tensor counted = step.token_weights().ne(0).unsqueeze(1);
  EXPECT_TRUE(at::equal(report.tokens_per_expert, reference.chosen().logical_and(counted).sum(0)));
}

// Finds what went wrong in AutoModel#1408 and #1412.
/// The gradient of the router alone, so that a loss whose gradient is lost or has another factor shows.
TEST_P(EachExpertLayer, LossesOfTheRouterReachItsWeight) {
  const RouterSettings& settings = layer_case.router;
  if (settings.balance_weight == 0.0) return;
  torch::autograd::backward({model.forward(leaf_copy(input()), context)}, {at::zeros_like(input())});
  ReferenceExperts reference(layer_case, model);
  at::Tensor losses = at::zeros({}, at::kDouble);
  reference.forward(leaf64(input()), step, losses);
  torch::autograd::backward({losses * kLossScale});
  expect_near(model.parameter("router").gradient(), reference.weights().at("router").grad(), kExpertTolerance,
              "router");
}

TEST_P(EachExpertLayer, InBf16StaysNearTheFp64Layer) {
  ExpertModel narrow(layer_case, DType::bf16);
  const at::Tensor x = leaf_copy(input().to(at::kBFloat16));
  // The choice may differ where logits are nearly equal, so only the mean difference is bounded.
  const at::Tensor out = narrow.forward(x, context);
  torch::autograd::backward({out}, {cotangent().to(at::kBFloat16)});
  ReferenceExperts reference(layer_case, narrow);
  at::Tensor losses = at::zeros({}, at::kDouble);
  const at::Tensor x64 = leaf64(x);
  const at::Tensor expected = reference.forward(x64, step, losses);
  torch::autograd::backward({(expected * cotangent().to(at::kDouble)).sum() + losses * kLossScale});
  const auto expect_typical = [](const at::Tensor& actual, const at::Tensor& wanted, const char* name) {
    const double error = (actual.to(at::kDouble) - wanted).square().mean().sqrt().item<double>();
    EXPECT_LE(error, 0.04 * wanted.square().mean().sqrt().item<double>()) << name;
  };
  expect_typical(out.detach(), expected.detach(), "out");
  expect_typical(x.grad(), x64.grad(), "x");
  for (const auto& [name, weight] : reference.weights())
    expect_typical(narrow.parameter(name).gradient(), weight.grad(), name.c_str());
}

TEST_P(EachExpertLayer, GradientsWrittenLaterHaveTheSameBits) {
  const Run expected = run(model);
  model.store.unit(0).start_gradient();
  GradientQueue queue;
  const at::Tensor x = leaf_copy(input());
  const at::Tensor out = model.forward(x, context);
  const std::vector<int> units = {0};
  queued_backward(model.store, units, queue, [&] { torch::autograd::backward({out}, {cotangent()}); });
  EXPECT_TRUE(at::equal(x.grad(), expected.x_gradient));
  queue.run();
  EXPECT_TRUE(at::equal(model.store.unit(0).gradient(), expected.gradient));
}

TEST_P(EachExpertLayer, ASecondBackwardAdds) {
  const Run once = run(model);
  const at::Tensor x = leaf_copy(input());
  torch::autograd::backward({model.forward(x, context)}, {cotangent()});
  expect_near(model.store.unit(0).gradient(), once.gradient * 2, kExpertTolerance, "gradient");
}

TEST_P(EachExpertLayer, RecomputedGivesTheSameBitsAndReportsOnce) {
  const Run expected = run(model);
  model.store.unit(0).start_gradient();
  int reported = 0;
  RouterStep counting(scalar(kLossScale), batch, [&](const RouterReport&) { ++reported; });
  context.routers = &counting;
  const std::vector<std::string> recomputed = {"mlp"};
  context.recomputed_regions = recomputed;
  const at::Tensor x = leaf_copy(input());
  const at::Tensor out = model.forward(x, context);
  const at::Tensor tokens = counting.report_of(0).tokens_per_expert.clone();
  torch::autograd::backward({out}, {cotangent()});
  expect_same(
      {out.detach(), x.grad(), model.store.unit(0).gradient(), counting.report_of(0).tokens_per_expert},
      {expected.out, expected.x_gradient, expected.gradient, tokens});
  EXPECT_EQ(reported, 1);
}

INSTANTIATE_TEST_SUITE_P(Layers, EachExpertLayer, ::testing::ValuesIn(expert_cases()),
                         [](const auto& info) { return info.param.name; });

/// Slices of three rows on two ranks begin inside a row, and consist of halves of rows; of two rows they are whole ones.
TEST(ExpertsOfSlices, RoutersWeighTheTokensOfTheirSlice) {
  Batch host = made_up_batch(3, 8, 96);
  mask_labels(host, [](size_t token) { return token % 5 == 2; });
  const BatchTensors batch(std::move(host));
  const RouterStep whole(scalar(1.0), batch);
  EXPECT_EQ(whole.rows(), 3);
  for (int rank = 0; rank < 2; ++rank) {
    const RouterStep slice(scalar(1.0), batch, nullptr, {rank, 2, /*sequence=*/true});
    EXPECT_EQ(slice.rows(), 3);
    EXPECT_TRUE(at::equal(slice.token_weights(), whole.token_weights().narrow(0, 12L * rank, 12)));
    const RouterStep all(scalar(1.0), batch, nullptr, {rank, 2, /*sequence=*/false});
    EXPECT_TRUE(at::equal(all.token_weights(), whole.token_weights()));
  }
  const BatchTensors even(made_up_batch(2, 8, 96));
  EXPECT_EQ(RouterStep(scalar(1.0), even, nullptr, {1, 2, true}).rows(), 1);
}

TEST_F(Experts, DoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Run expected = run(model);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    const Run actual = run(model);
    expect_same({actual.out, actual.x_gradient, actual.gradient},
                {expected.out, expected.x_gradient, expected.gradient});
  }
  at::set_num_threads(before);
}

TEST_F(Experts, EvaluationReportsNothing) {
  const Run training = run(model);
  const at::NoGradGuard no_grad;
  context.routers = nullptr;
  EXPECT_TRUE(at::equal(model.forward(input(), context), training.out));
  EXPECT_TRUE(step.reports().empty());
}

TEST_F(Experts, RefuseTrainingThatWouldLeaveOutTheLosses) {
  context.routers = nullptr;
  EXPECT_THROW(model.forward(leaf_copy(input()), context), Error);
}

/// A correction sends all tokens to one expert.
TEST_F(Experts, OneMayHaveAllTokensAndTheOthersNone) {
  ExpertCase one = expert_cases().at(2);
  one.correction = true;
  ExpertModel lopsided(one);
  lopsided.correction.zero_();
  lopsided.correction.select(0, 5).fill_(10.0);
  const at::Tensor x = leaf_copy(input());
  const at::Tensor x64 = leaf64(x);
  ReferenceExperts reference(one, lopsided);
  at::Tensor losses = at::zeros({}, at::kDouble);
  const at::Tensor expected = reference.forward(x64, step, losses);
  torch::autograd::backward({(expected * cotangent().to(at::kDouble)).sum() + losses * kLossScale});
  const at::Tensor out = lopsided.forward(x, context);
  torch::autograd::backward({out}, {cotangent()});
  expect_near(out, expected, kExpertTolerance, "out");
  expect_near(x.grad(), x64.grad(), kExpertTolerance, "x");
  for (const char* name : {"expert_gate_up", "expert_down"}) {
    const at::Tensor gradient = lopsided.parameter(name).gradient().view({one.dims.experts, -1});
    expect_near(gradient, reference.weights().at(name).grad().view(gradient.sizes()), kExpertTolerance, name);
    for (int64_t e = 0; e < one.dims.experts; ++e)
      EXPECT_EQ(gradient.select(0, e).eq(0).all().item<bool>(), e != 5) << name << e;
  }
}

/// A frozen expert or router gets no gradient, and still passes on that of the input.
TEST_F(Experts, FrozenWeightsPassGradientsOn) {
  const Run expected = run(model);
  std::map<std::string, Parameter> frozen;
  for (const ParameterSpec& spec : model.spec.parameters)
    frozen.try_emplace(spec.name, &spec, model.store.parameter(spec.name).value().detach(), at::Tensor());
  const ParameterLookup lookup = [&](std::string_view name) -> Parameter& {
    return frozen.at(std::string(name));
  };
  const CallList& calls = model.spec.list;
  ListBlock block(calls, calls, lookup, std::make_shared<const LayerResources>());
  const at::Tensor x = leaf_copy(input());
  torch::autograd::backward(forward_in_graph(block, {x}, context), {cotangent()});
  EXPECT_TRUE(at::equal(x.grad(), expected.x_gradient));
}

}  // namespace
}  // namespace stepforge::testing
