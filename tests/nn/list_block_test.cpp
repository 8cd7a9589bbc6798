// SPDX-License-Identifier: Apache-2.0
// The interpreter against numeric derivatives, in fp64: of every call, and of lists that are drawn.
#include "stepforge/nn/list_block.h"

#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/rotary.h"
#include "stepforge/modelspec/calls/swiglu.h"
#include "tests/nn/one_call.h"
#include "tests/nn/tiny_model.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kRowsOfBatch = 2;
constexpr int64_t kLength = 5;
constexpr int64_t kTokens = kRowsOfBatch * kLength;
constexpr AttentionShape kShape{4, 2, 6, 0.4};

at::Tensor random_double(at::IntArrayRef sizes, uint64_t seed) {
  return random_tensor(sizes, static_cast<int>(seed)).to(at::kDouble);
}

/// Parameters in fp64, made when a list names them.
class Weights {
 public:
  const ParameterSpec* add(const std::string& name, std::vector<int64_t> shape) {
    specs_.push_back({name, shape, {{"weight", name, shape.front(), {}}}});
    const at::Tensor value =
        random_double(shape, 100 + specs_.size()).mul_(0.5).add_(shape.size() == 1 ? 1 : 0);
    parameters_.emplace_back(&specs_.back(), value, at::zeros(shape, at::kDouble));
    return &specs_.back();
  }
  ParameterLookup lookup() {
    return [this](std::string_view name) -> Parameter& {
      for (Parameter& parameter : parameters_)
        if (parameter.spec().name == name) return parameter;
      throw Error(format("no parameter {}", name));
    };
  }
  std::deque<Parameter>& all() { return parameters_; }

 private:
  std::deque<ParameterSpec> specs_;
  std::deque<Parameter> parameters_;
};

/// Compares the gradients of a list, in a random direction for inputs and weights, with differences of its results.
class Derivative {
 public:
  Derivative(CallList list, Weights& weights, std::vector<std::string> recomputed = {})
      : weights_(weights), recomputed_(std::move(recomputed)), batch_(rows()) {
    list_ = list;
    LayerResources resources;
    resources.rope = std::make_shared<const RopeTable>(make_rope_table(kLength, kShape.head_dim, 1e4, {}));
    block_ = std::make_unique<ListBlock>(list, list, weights.lookup(),
                                         std::make_shared<const LayerResources>(resources));
    context_.batch = &batch_;
    context_.recomputed_regions = recomputed_;
    for (const int input : list.inputs)
      inputs_.push_back(random_double({kTokens, list.value(input).width}, inputs_.size() + 1));
  }

  void expect_equal() {
    Bundle leaves;
    for (const at::Tensor& input : inputs_) leaves.push_back(input.clone().set_requires_grad(true));
    for (Parameter& parameter : weights_.all()) parameter.start_gradient();
    const Bundle outputs = block_->forward(leaves, context_);
    Bundle cotangents;
    for (const at::Tensor& output : outputs)
      cotangents.push_back(random_double(output.sizes(), 50 + cotangents.size()));
    torch::autograd::backward(outputs, cotangents);
    double expected = 0;
    std::vector<std::pair<at::Tensor, at::Tensor>> moved;  // tensors and directions
    const auto add = [&](const at::Tensor& tensor, const at::Tensor& gradient) {
      const at::Tensor direction = random_double(tensor.sizes(), 70 + moved.size());
      expected += gradient.defined() ? (gradient * direction).sum().item<double>() : 0.0;
      moved.emplace_back(tensor, direction);
    };
    for (std::size_t i = 0; i < inputs_.size(); ++i) add(inputs_[i], leaves[i].grad());
    for (Parameter& parameter : weights_.all()) add(parameter.value(), parameter.gradient());
    constexpr double kStep = 1e-5;
    const auto result_at = [&](double step) {
      for (const auto& [tensor, direction] : moved) tensor.add_(direction, step);
      const at::NoGradGuard no_grad;
      double sum = 0;
      const Bundle made = block_->forward(inputs_, context_);
      for (std::size_t i = 0; i < made.size(); ++i) sum += (made[i] * cotangents[i]).sum().item<double>();
      return sum;
    };
    const double above = result_at(kStep);
    const double below = result_at(-2 * kStep);
    result_at(kStep);
    const double actual = (above - below) / (2 * kStep);
    EXPECT_NEAR(actual, expected, 1e-6 * std::max(1.0, std::abs(expected))) << text();
  }

 private:
  static Batch rows() { return made_up_batch(kRowsOfBatch, kLength, 50); }

  std::string text() const {
    std::string lines;
    for (const Call& call : list_.calls) lines += text_of(list_, call) + (call.recompute ? " again\n" : "\n");
    return lines;
  }

  CallList list_;
  Weights& weights_;
  std::vector<std::string> recomputed_;
  BatchTensors batch_;
  Context context_;
  std::unique_ptr<ListBlock> block_;
  Bundle inputs_;
};

struct CallCase {
  std::string name;
  std::function<int(ListWriter&, Weights&)> write;  ///< returns the output
};

int input_of(ListWriter& writer, int64_t width) {
  return writer.input({"x", width});
}

std::vector<CallCase> call_cases() {
  const int64_t qkv = kShape.qkv_width();
  return {
      {"rms_norm",
       [](ListWriter& w, Weights& p) {
         return w.call(CallKind::rms_norm, "norm", {input_of(w, 12)}, {p.add("norm", {12})},
                       NormAttributes{1e-5, 0.0});
       }},
      {"rms_norm_with_offset",
       [](ListWriter& w, Weights& p) {
         return w.call(CallKind::rms_norm, "norm", {input_of(w, 12)}, {p.add("norm", {12})},
                       NormAttributes{1e-5, 1.0});
       }},
      {"linear",
       [](ListWriter& w, Weights& p) {
         return w.call(CallKind::linear, "linear", {input_of(w, 12)}, {p.add("weight", {7, 12})});
       }},
      {"bias",
       [](ListWriter& w, Weights& p) {
         return w.call(CallKind::bias, "bias", {input_of(w, 12)}, {p.add("bias", {12})});
       }},
      {"rotary",
       [qkv](ListWriter& w, Weights&) {
         return w.call(CallKind::rotary, "rotary", {input_of(w, qkv)}, {}, RotaryAttributes{kShape});
       }},
      {"rotary_with_norms_of_heads",
       [qkv](ListWriter& w, Weights& p) {
         return w.call(CallKind::rotary, "rotary", {input_of(w, qkv)},
                       {p.add("q", {kShape.head_dim}), p.add("k", {kShape.head_dim})},
                       RotaryAttributes{kShape, 1e-5});
       }},
      {"rotary_with_norms_of_all_heads",
       [qkv](ListWriter& w, Weights& p) {
         return w.call(CallKind::rotary, "rotary", {input_of(w, qkv)},
                       {p.add("q", {kShape.q_width()}), p.add("k", {kShape.k_width()})},
                       RotaryAttributes{kShape, 1e-5});
       }},
      {"attention",
       [qkv](ListWriter& w, Weights&) {
         return w.call(CallKind::attention, "attention", {input_of(w, qkv)}, {}, AttentionAttributes{kShape});
       }},
      {"attention_with_sinks_window_and_cap",
       [qkv](ListWriter& w, Weights& p) {
         AttentionShape shape = kShape;
         shape.window = 3;
         shape.cap = 2.0;
         return w.call(CallKind::attention, "attention", {input_of(w, qkv)}, {p.add("sinks", {kShape.heads})},
                       AttentionAttributes{shape});
       }},
      {"swiglu",
       [](ListWriter& w, Weights&) {
         return w.call(CallKind::swiglu, "swiglu", {input_of(w, 12)}, {}, SwigluAttributes{});
       }},
      {"geglu",
       [](ListWriter& w, Weights&) {
         return w.call(CallKind::swiglu, "swiglu", {input_of(w, 12)}, {},
                       SwigluAttributes{Activation::gelu_tanh});
       }},
      {"residual_add",
       [](ListWriter& w, Weights&) {
         return w.call(CallKind::residual_add, "sum", {input_of(w, 12), input_of(w, 12)}, {},
                       ResidualAttributes{});
       }},
  };
}

TEST(ListBlock, TheDerivativeOfEveryCallIsThatOfItsResult) {
  for (const CallCase& tried : call_cases()) {
    SCOPED_TRACE(tried.name);
    Weights weights;
    ListWriter writer("test");
    const int made = tried.write(writer, weights);
    Derivative(writer.finish({made}), weights).expect_equal();
  }
}

/// Numbers that depend on the seed only.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t count) {
    state_ = mix_bits(state_ + 1);
    return static_cast<int64_t>(state_ % static_cast<uint64_t>(count));
  }

 private:
  uint64_t state_;
};

/// Calls of values that are drawn among all so far, so that some are used twice and others not at all.
CallList drawn_list(Draw& draw, Weights& weights) {
  constexpr int64_t kWidth = 12;
  ListWriter writer(draw.below(2) == 0 ? "first" : "second");
  std::vector<int> values = {writer.input({"x", kWidth})};
  if (draw.below(3) == 0) values.push_back(writer.input({"y", kWidth}));
  const int64_t calls = 2 + draw.below(9);
  for (int64_t c = 0; c < calls; ++c) {
    const auto any = [&] { return values[static_cast<std::size_t>(draw.below(std::ssize(values)))]; };
    const std::string name = format("call{}", c);
    switch (draw.below(6)) {
      case 0:
        values.push_back(writer.call(CallKind::rms_norm, name, {any()}, {weights.add(name, {kWidth})},
                                     NormAttributes{1e-5, static_cast<double>(draw.below(2))}));
        break;
      case 1:
        values.push_back(writer.call(CallKind::linear, name, {any()}, {weights.add(name, {kWidth, kWidth})}));
        break;
      case 2:
        values.push_back(writer.call(CallKind::bias, name, {any()}, {weights.add(name, {kWidth})}));
        break;
      case 3: {
        const int wide =
            writer.call(CallKind::linear, name + "w", {any()}, {weights.add(name, {2 * kWidth, kWidth})});
        values.push_back(writer.call(CallKind::swiglu, name, {wide}, {}, SwigluAttributes{}));
        break;
      }
      case 4:  // another name for the same memory
        values.push_back(writer.call(CallKind::exchange, name, {any()}, {}, ExchangeAttributes{}));
        break;
      default:
        values.push_back(writer.call(CallKind::residual_add, name, {any(), any()}, {}, ResidualAttributes{}));
    }
  }
  std::vector<int> outputs = {values.back()};
  if (draw.below(3) == 0 && values.size() > 3) outputs.push_back(values[values.size() - 2]);
  CallList list = writer.finish(outputs);
  for (Call& call : list.calls) call.recompute = draw.below(3) == 0;
  return list;
}

TEST(ListBlock, TheDerivativeOfDrawnListsIsThatOfTheirResults) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    Weights weights;
    const CallList list = drawn_list(draw, weights);
    Derivative(list, weights).expect_equal();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace stepforge::testing
