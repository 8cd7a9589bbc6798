// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/magnitude.h"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/nn/list_block.h"
#include "tests/nn/one_call.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {
namespace {

/// W [14, 6] with adapters of its rows 0 to 4 (rank 2) and 9 to 14 (rank 3).
class Magnitudes {
 public:
  Magnitudes() {
    add("m0", {4}, 1.0);
    add("m1", {5}, 1.0);
    add("w", {14, 6});
    add("a", {5, 6});
    add("b0", {4, 2});
    add("b1", {5, 3});
  }

  Parameter& operator[](const std::string& name) {
    for (Parameter& parameter : parameters_)
      if (parameter.spec().name == name) return parameter;
    throw Error("no parameter " + name);
  }

  CallList list() {
    std::vector<const ParameterSpec*> weights;
    for (const Parameter& parameter : parameters_) weights.push_back(&parameter.spec());
    CallList made =
        one_call(kMagnitude, {14}, MagnitudeAttributes{.parts = {{0, 0, 0.5}, {2, 9, 2.0}}}, weights);
    for (size_t i = 2; i < made.calls[0].weights.size(); ++i)
      made.calls[0].weights[i] = constant_weight(made.calls[0].weights[i]);
    return made;
  }

  /// The rows of W + scale B A that have magnitudes.
  at::Tensor sums() {
    const at::NoGradGuard no_grad;
    const at::Tensor w = value("w");
    const at::Tensor a = value("a");
    return at::cat({w.narrow(0, 0, 4) + at::mm(value("b0"), a.narrow(0, 0, 2)) * 0.5,
                    w.narrow(0, 9, 5) + at::mm(value("b1"), a.narrow(0, 2, 3)) * 2.0});
  }
  at::Tensor value(const std::string& name) { return (*this)[name].value().detach(); }

  ParameterLookup lookup() {
    return [this](std::string_view name) -> Parameter& { return (*this)[std::string(name)]; };
  }

 private:
  void add(const std::string& name, std::vector<int64_t> shape, double offset = 0.0) {
    specs_.push_back({name, shape, {{"weight", name, shape.front(), {}}}});
    const at::Tensor value = random_tensor(shape, static_cast<int>(specs_.size())).to(at::kDouble) + offset;
    parameters_.emplace_back(&specs_.back(), value.set_requires_grad(true), at::zeros(shape, at::kDouble));
  }

  std::deque<ParameterSpec> specs_;
  std::deque<Parameter> parameters_;
};

at::Tensor tokens(int64_t count, int seed) {
  return random_tensor({count, 14}, seed).to(at::kDouble);
}

struct Passed {
  at::Tensor result;
  at::Tensor gradient;  ///< of y
};

Passed pass(Magnitudes& weights, const at::Tensor& y, const at::Tensor& cotangent) {
  const BatchTensors batch(made_up_batch(1, y.size(0), 50));
  Context context;
  context.batch = &batch;
  const CallList list = weights.list();
  ListBlock block(list, list, weights.lookup(), std::make_shared<const LayerResources>());
  for (const char* name : {"m0", "m1", "w", "a", "b0", "b1"}) weights[name].start_gradient();
  const at::Tensor leaf = y.clone().set_requires_grad(true);
  const Bundle outputs = forward_in_graph(block, {leaf}, context);
  torch::autograd::backward(outputs, {cotangent});
  return {outputs.at(0).detach(), leaf.grad()};
}

TEST(Magnitude, ScalesRowsByMagnitudesDividedByNormsWhichAreConstants) {
  Magnitudes weights;
  const at::Tensor y = tokens(7, 31);
  const at::Tensor cotangent = tokens(7, 32);
  const Passed passed = pass(weights, y, cotangent);
  const at::Tensor norms = weights.sums().norm(2, {1});
  const at::Tensor factors = at::cat({weights.value("m0") / norms.narrow(0, 0, 4), at::ones({5}, at::kDouble),
                                      weights.value("m1") / norms.narrow(0, 4, 5)});
  EXPECT_TRUE(at::allclose(passed.result, y * factors, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(passed.gradient, cotangent * factors, 1e-12, 1e-12));
  const at::Tensor sums = (y * cotangent).sum(0);
  EXPECT_TRUE(
      at::allclose(weights["m0"].gradient(), sums.narrow(0, 0, 4) / norms.narrow(0, 0, 4), 1e-12, 1e-12));
  EXPECT_TRUE(
      at::allclose(weights["m1"].gradient(), sums.narrow(0, 9, 5) / norms.narrow(0, 4, 5), 1e-12, 1e-12));
  for (const char* constant : {"w", "a", "b0", "b1"})
    EXPECT_EQ(weights[constant].gradient().abs().max().item<double>(), 0.0) << constant;
}

TEST(Magnitude, TokensThatAreTakenPieceByPieceAreTheSame) {
  Magnitudes weights;
  const int64_t count = magnitude_row::scratch(14, 6) / 14 + 3;
  const at::Tensor y = tokens(count, 33);
  const at::Tensor cotangent = tokens(count, 34);
  const Passed whole = pass(weights, y, cotangent);
  const at::Tensor gradient = weights["m1"].gradient().clone();
  const Passed end = pass(weights, y.narrow(0, count - 5, 5), cotangent.narrow(0, count - 5, 5));
  EXPECT_TRUE(at::equal(whole.result.narrow(0, count - 5, 5), end.result));
  EXPECT_TRUE(at::equal(whole.gradient.narrow(0, count - 5, 5), end.gradient));
  const at::Tensor norms = weights.sums().norm(2, {1}).narrow(0, 4, 5);
  EXPECT_TRUE(at::allclose(gradient, (y * cotangent).sum(0).narrow(0, 9, 5) / norms, 1e-10, 1e-10));
}

/// Rows [7, 4] of three experts, of which the second has none: W [12, 6], B [12, 2] and A [6, 6], or one A [2, 6].
TEST(Magnitude, OfExpertsScalesTheRowsOfEachByItsOwnWeights) {
  for (const bool one_a : {false, true}) {
    constexpr std::array<int64_t, 4> kOffsets = {0, 3, 3, 7};
    const std::vector<ParameterSpec> specs = {{"m", {12}, {{"weight", "m", 12, {}}}},
                                              {"w", {12, 6}, {{"weight", "w", 12, {}}}},
                                              {"a", {one_a ? 2 : 6, 6}, {{"weight", "a", one_a ? 2 : 6, {}}}},
                                              {"b", {12, 2}, {{"weight", "b", 12, {}}}}};
    std::deque<Parameter> parameters;
    for (const ParameterSpec& spec : specs) {
      const at::Tensor value = random_tensor(spec.shape, static_cast<int>(parameters.size())).to(at::kDouble);
      parameters.emplace_back(&spec, value.clone().set_requires_grad(true),
                              at::zeros(spec.shape, at::kDouble));
    }
    for (Parameter& parameter : parameters) parameter.start_gradient();
    const auto value = [&](size_t index) { return parameters[index].value().detach(); };
    ListWriter writer("test");
    const int y_value = writer.input({"y", 4});
    const int experts_value =
        writer.input({.name = "experts", .width = 1, .type = ElementType::int32, .differentiable = false});
    CallList list = writer.finish({writer.call(kMagnitude, "call", {y_value, experts_value},
                                               {&specs[0], &specs[1], &specs[2], &specs[3]},
                                               MagnitudeAttributes{.parts = {{0, 0, 0.5}}, .experts = 3})});
    for (size_t i = 1; i < 4; ++i) list.calls[0].weights[i] = constant_weight(list.calls[0].weights[i]);
    const ParameterLookup lookup = [&](std::string_view name) -> Parameter& {
      return *std::ranges::find_if(parameters, [&](const Parameter& p) { return p.spec().name == name; });
    };
    ListBlock block(list, list, lookup, std::make_shared<const LayerResources>());
    const BatchTensors batch(made_up_batch(1, 7, 50));
    Context context;
    context.batch = &batch;
    const at::Tensor y = random_tensor({7, 4}, 41).to(at::kDouble);
    const at::Tensor cotangent = random_tensor({7, 4}, 42).to(at::kDouble);
    const at::Tensor leaf = y.clone().set_requires_grad(true);
    const at::Tensor experts = at::tensor({2, 0, 2, 2, 0, 2, 0}, at::kInt).view({7, 1});
    const at::Tensor result = forward_in_graph(block, {leaf, experts}, context).at(0);
    torch::autograd::backward({result}, {cotangent});
    for (int64_t e = 0; e < 3; ++e) {
      const auto begin = kOffsets.at(static_cast<size_t>(e));
      const int64_t rows = kOffsets.at(static_cast<size_t>(e) + 1) - begin;
      const auto of_rows = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
      const at::Tensor sum =
          value(1).narrow(0, 4 * e, 4) +
          at::mm(value(3).narrow(0, 4 * e, 4), value(2).narrow(0, one_a ? 0 : 2 * e, 2)) * 0.5;
      const at::Tensor norms = sum.norm(2, {1});
      const at::Tensor factors = value(0).narrow(0, 4 * e, 4) / norms;
      EXPECT_TRUE(at::allclose(of_rows(result.detach()), of_rows(y) * factors, 1e-12, 1e-12)) << e;
      EXPECT_TRUE(at::allclose(of_rows(leaf.grad()), of_rows(cotangent) * factors, 1e-12, 1e-12)) << e;
      EXPECT_TRUE(at::allclose(parameters[0].gradient().narrow(0, 4 * e, 4),
                               (of_rows(y) * of_rows(cotangent)).sum(0) / norms, 1e-12, 1e-12))
          << e;
    }
  }
}

TEST(Magnitude, OfARowOfZerosEverythingIsFinite) {
  Magnitudes weights;
  const at::NoGradGuard no_grad;
  for (const char* zero : {"w", "a", "b0", "b1", "m0", "m1"}) weights[zero].value().zero_();
  const at::AutoGradMode with_graph(true);
  const Passed passed = pass(weights, tokens(3, 35), tokens(3, 36));
  EXPECT_TRUE(passed.result.isfinite().all().item<bool>());
  EXPECT_TRUE(passed.gradient.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace stepforge::testing
