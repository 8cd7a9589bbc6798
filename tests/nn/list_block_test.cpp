// SPDX-License-Identifier: Apache-2.0
// The interpreter against numeric derivatives, in fp64: of every call, and of lists that are drawn.
#include "stepforge/nn/list_block.h"

#include <cmath>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/format.h"
#include "stepforge/kernels/scalars.h"
#include "stepforge/modelspec/calls/columns.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/experts.h"
#include "stepforge/modelspec/calls/latent_heads.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/modelspec/calls/low_rank.h"
#include "stepforge/modelspec/calls/magnitude.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/rotary.h"
#include "stepforge/modelspec/calls/router.h"
#include "stepforge/modelspec/calls/score.h"
#include "stepforge/modelspec/calls/swiglu.h"
#include "stepforge/nn/list_head.h"
#include "tests/nn/one_call.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

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
    parameters_.emplace_back(&specs_.back(), value.set_requires_grad(true), at::zeros(shape, at::kDouble));
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
    resources.rope = std::make_shared<const RopeTable>(make_rope_table(kLength, rotated_of(list), 1e4, {}));
    block_ = std::make_unique<ListBlock>(list, list, weights.lookup(),
                                         std::make_shared<const LayerResources>(resources));
    context_.batch = &batch_;
    context_.adapter_dropout = 0.375;
    context_.dropout_key.key = 99;
    context_.recomputed_regions = recomputed_;
    for (const int input : list.inputs)
      inputs_.push_back(random_double({kTokens, list.value(input).width}, inputs_.size() + 1));
  }

  void expect_equal() {
    Bundle leaves;
    for (const at::Tensor& input : inputs_) leaves.push_back(input.clone().set_requires_grad(true));
    for (Parameter& parameter : weights_.all()) parameter.start_gradient();
    const Bundle outputs = forward_in_graph(*block_, leaves, context_);
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
      const at::NoGradGuard no_grad;
      for (const auto& [tensor, direction] : moved) tensor.add_(direction, step);
      double sum = 0;
      const Bundle made = forward_in_graph(*block_, inputs_, context_);
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
  static int64_t rotated_of(const CallList& list) {
    const auto latent = std::ranges::find(list.calls, &kLatentHeads, &Call::kind);
    return latent == list.calls.end() ? kShape.head_dim
                                      : attributes_of<LatentHeadsAttributes>(*latent).rotated;
  }
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

/// Experts of 4 hidden units, of which a token of width 12 takes 2.
struct ExpertCalls {
  int64_t count = 5;
  bool stacked = false;
  bool adapted = false;
  bool shared_a = false;  ///< of the adapters
  bool apart = false;     ///< the rows of the last matrices are made first, and then summed

  int write(ListWriter& w, Weights& p) const {
    const ExpertsAttributes attributes{count, 2, stacked};
    const int x = input_of(w, 12);
    const int weights = w.call(kRoute, "route", {x}, {p.add("router", {count, 12})},
                               RouteAttributes{.settings = {{.chosen = 2}}});
    const int experts = w.results()[1];
    const int slots = w.call(kSortRows, "slots", {experts}, {}, attributes);
    const int rows = w.results()[1];
    int gate_up =
        w.call(kExpertIn, "gate_up", {x, experts, slots, rows}, matrices(p, "gate_up", 12, 8), attributes);
    if (adapted) {
      const int h = write_a(w, p, {x, experts, slots, rows});
      gate_up = w.call(kLowRank, "gate_up.B", {h, gate_up, experts},
                       {p.add("gate_b", {count * 4, 1}), p.add("up_b", {count * 4, 3})},
                       LowRankAttributes{{{0, 0, 0.5}, {1, 4, 2.0}}, count});
    }
    SwigluAttributes gated;
    if (stacked) gated.clamped = ClampedSwiglu{.limit = 2.0, .alpha = 1.3};
    const int hidden = w.call(kSwiglu, "swiglu", {gate_up, weights, slots}, {}, gated);
    w.recompute_last();
    if (apart) {
      const int made = w.call(kExpertRows, "down", {hidden, experts}, matrices(p, "down", 4, 12),
                              ExpertRowsAttributes{count});
      return w.call(kSumRows, "down.sum", {made, experts, slots, rows}, {}, attributes);
    }
    std::vector<int> taken = {hidden, experts, slots, rows};
    if (stacked) taken.push_back(weights);
    const int down = w.call(kExpertOut, "down", std::move(taken), matrices(p, "down", 4, 12), attributes);
    if (!adapted) return down;
    const int64_t own = shared_a ? 1 : count;
    const int h = w.call(kExpertRows, "down.A", shared_a ? std::vector{hidden} : std::vector{hidden, experts},
                         {p.add("down_a", {own * 2, 4})}, ExpertRowsAttributes{own, 1.5});
    const int added = w.call(kExpertOut, "down.B", {h, experts, slots, rows},
                             {p.add("down_b", {count * 12, 2})}, attributes);
    return w.call(kAdd, "down.sum", {down, added});
  }

 private:
  /// Of gate and up, of tokens and where their rows are.
  int write_a(ListWriter& w, Weights& p, std::vector<int> operands) const {
    const ExpertsAttributes attributes{count, 2, stacked};
    if (!shared_a)
      return w.call(kExpertIn, "gate_up.A", std::move(operands), {p.add("gate_up_a", {count * 4, 12})},
                    attributes);
    operands.front() = w.call(kLinear, "gate_up.A", {operands.front()}, {p.add("gate_up_a", {4, 12})});
    return w.call(kTakeRows, "gate_up.rows", std::move(operands), {}, attributes);
  }

  std::vector<const ParameterSpec*> matrices(Weights& p, const std::string& name, int64_t in,
                                             int64_t out) const {
    if (!stacked) return {p.add(name, {count * out, in})};
    return {p.add(name, {count, in, out}), p.add(name + "_bias", {count, out})};
  }
};

std::vector<CallCase> call_cases() {
  const int64_t qkv = kShape.qkv_width();
  return {
      {"rms_norm",
       [](ListWriter& w, Weights& p) {
         return w.call(kRmsNorm, "norm", {input_of(w, 12)}, {p.add("norm", {12})}, NormAttributes{1e-5, 0.0});
       }},
      {"rms_norm_with_offset",
       [](ListWriter& w, Weights& p) {
         return w.call(kRmsNorm, "norm", {input_of(w, 12)}, {p.add("norm", {12})}, NormAttributes{1e-5, 1.0});
       }},
      {"linear",
       [](ListWriter& w, Weights& p) {
         return w.call(kLinear, "linear", {input_of(w, 12)}, {p.add("weight", {7, 12})});
       }},
      {"bias", [](ListWriter& w,
                  Weights& p) { return w.call(kBias, "bias", {input_of(w, 12)}, {p.add("bias", {12})}); }},
      {"bias_of_parts",
       [](ListWriter& w, Weights& p) {
         return w.call(kBias, "bias", {input_of(w, 12)}, {p.add("q", {6}), p.add("k", {1}), p.add("v", {5})});
       }},
      {"rotary",
       [qkv](ListWriter& w, Weights&) {
         return w.call(kRotary, "rotary", {input_of(w, qkv)}, {}, RotaryAttributes{kShape});
       }},
      {"rotary_with_norms_of_heads",
       [qkv](ListWriter& w, Weights& p) {
         return w.call(kRotary, "rotary", {input_of(w, qkv)},
                       {p.add("q", {kShape.head_dim}), p.add("k", {kShape.head_dim})},
                       RotaryAttributes{kShape, 1e-5});
       }},
      {"rotary_with_norms_of_all_heads",
       [qkv](ListWriter& w, Weights& p) {
         return w.call(kRotary, "rotary", {input_of(w, qkv)},
                       {p.add("q", {kShape.q_width()}), p.add("k", {kShape.k_width()})},
                       RotaryAttributes{kShape, 1e-5});
       }},
      {"attention",
       [qkv](ListWriter& w, Weights&) {
         return w.call(kAttention, "attention", {input_of(w, qkv)}, {}, AttentionAttributes{kShape});
       }},
      {"attention_with_sinks_window_and_cap",
       [qkv](ListWriter& w, Weights& p) {
         AttentionShape shape = kShape;
         shape.window = 3;
         shape.cap = 2.0;
         return w.call(kAttention, "attention", {input_of(w, qkv)}, {p.add("sinks", {kShape.heads})},
                       AttentionAttributes{shape});
       }},
      {"swiglu",
       [](ListWriter& w, Weights&) {
         return w.call(kSwiglu, "swiglu", {input_of(w, 12)}, {}, SwigluAttributes{});
       }},
      {"geglu",
       [](ListWriter& w, Weights&) {
         return w.call(kSwiglu, "swiglu", {input_of(w, 12)}, {}, SwigluAttributes{Activation::gelu_tanh});
       }},
      {"add",
       [](ListWriter& w, Weights&) { return w.call(kAdd, "sum", {input_of(w, 12), input_of(w, 12)}); }},
      {"gated_add",
       [](ListWriter& w, Weights& p) {
         const int x = input_of(w, 12);
         const int gate = w.call(kWideLinear, "gate", {x}, {p.add("gate", {1, 12})});
         return w.call(kGatedAdd, "sum", {input_of(w, 12), x, gate});
       }},
      {"wide_linear",
       [](ListWriter& w, Weights& p) {
         return w.call(kWideLinear, "wide", {input_of(w, 12)}, {p.add("weight", {5, 12})});
       }},
      {"split",
       [](ListWriter& w, Weights&) {
         const int first = w.call(kSplit, "parts", {input_of(w, 12)}, {}, SplitAttributes{4});
         const int second = w.results()[1];
         return w.call(kConcat, "swapped", {second, first});
       }},
      {"concat",
       [](ListWriter& w, Weights&) { return w.call(kConcat, "both", {input_of(w, 12), input_of(w, 5)}); }},
      {"latent_heads",
       [](ListWriter& w, Weights&) {
         const AttentionShape shape{.heads = 3, .kv_heads = 3, .head_dim = 6, .value_dim = 5};
         return w.call(kLatentHeads, "heads", {input_of(w, 18), input_of(w, 3 * (2 + 5)), input_of(w, 4)}, {},
                       LatentHeadsAttributes{shape, 4});
       }},
      {"lookup",
       [](ListWriter& w, Weights& p) {
         return w.call(kLookup, "lookup", {}, {p.add("table", {50, 12})}, LookupAttributes{2.5});
       }},
      {"route",
       [](ListWriter& w, Weights& p) {
         return w.call(kRoute, "route", {input_of(w, 12)}, {p.add("router", {6, 12})},
                       RouteAttributes{.settings = {{.chosen = 2, .normalize = true, .factor = 1.5}}});
       }},
      {"route_with_a_bias_by_sigmoids",
       [](ListWriter& w, Weights& p) {
         return w.call(
             kRoute, "route", {input_of(w, 12)}, {p.add("router", {6, 12}), p.add("bias", {6})},
             RouteAttributes{.settings = {{.score = RouterScore::sigmoid, .chosen = 2}}, .biased = true});
       }},
      {"experts", [](ListWriter& w, Weights& p) { return ExpertCalls{}.write(w, p); }},
      {"experts_with_biases",
       [](ListWriter& w, Weights& p) { return ExpertCalls{.stacked = true}.write(w, p); }},
      {"experts_with_adapters",
       [](ListWriter& w, Weights& p) { return ExpertCalls{.adapted = true}.write(w, p); }},
      {"experts_with_adapters_of_which_some_have_no_rows",
       [](ListWriter& w, Weights& p) {
         return ExpertCalls{.count = 2 * kTokens + 3, .adapted = true}.write(w, p);
       }},
      {"experts_whose_rows_are_summed_apart",
       [](ListWriter& w, Weights& p) { return ExpertCalls{.apart = true}.write(w, p); }},
      {"experts_that_share_a",
       [](ListWriter& w, Weights& p) { return ExpertCalls{.adapted = true, .shared_a = true}.write(w, p); }},
      {"dropout",
       [](ListWriter& w, Weights&) {
         return w.call(kDropout, "dropped", {input_of(w, 12)}, {}, DropoutAttributes{});
       }},
      {"low_rank",
       [](ListWriter& w, Weights& p) {
         return w.call(kLowRank, "sum", {input_of(w, 5), input_of(w, 12)},
                       {p.add("first", {4, 2}), p.add("second", {6, 3})},
                       LowRankAttributes{{{0, 1, 0.5}, {2, 6, 2.0}}});
       }},
      {"residual_add",
       [](ListWriter& w, Weights&) {
         return w.call(kResidualAdd, "sum", {input_of(w, 12), input_of(w, 12)}, {}, ResidualAttributes{});
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

TEST(ListBlock, EveryKindOfCallHasADerivativeThatIsTried) {
  std::set<const CallKind*> tried = {&kExchange, &kToHeads, &kToTokens,  // between ranks
                                     &kLoss,     &kScore,                // ListHead
                                     &kMagnitude};  // magnitude_test.cpp: norms are constants
  for (const CallCase& one : call_cases()) {
    Weights weights;
    ListWriter writer("test");
    const int made = one.write(writer, weights);
    for (const Call& call : writer.finish({made}).calls) tried.insert(call.kind);
  }
  std::set<const CallKind*> known;
  for (const CallEntry* entry : call_entries()) known.insert(entry->kind);
  EXPECT_EQ(known.size(), call_entries().size());
  EXPECT_EQ(tried, known);
}

/// A norm and a loss, perhaps with an adapter of rank 3 and scale 0.75.
CallList head_list(Weights& weights, bool adapted, double cap = 0.0) {
  ListWriter writer("head");
  const int x = writer.input({"hidden", 12});
  const int y = writer.call(kRmsNorm, "norm", {x}, {weights.add("norm", {12})}, NormAttributes{1e-5});
  std::vector<int> operands = {y};
  std::vector<const ParameterSpec*> matrices = {weights.add("out", {50, 12})};
  if (adapted) {
    operands.push_back(writer.call(kLinear, "loss.A", {y}, {weights.add("a", {3, 12})}));
    matrices.push_back(weights.add("b", {50, 3}));
  }
  const LossAttributes loss{.chunk = 4, .vocabulary = 50, .logit_cap = cap, .adapter_scale = 0.75};
  return writer.finish({writer.call(kLoss, "loss", std::move(operands), matrices, loss)});
}

void expect_derivative_of_loss(bool adapted, double cap) {
  Weights weights;
  const CallList list = head_list(weights, adapted, cap);
  ListHead head(list, list, weights.lookup(), std::make_shared<const LayerResources>());
  const BatchTensors batch(made_up_batch(kRowsOfBatch, kLength, 50));
  Context context;
  context.batch = &batch;
  const at::Tensor hidden = random_double({kTokens, 12}, 1);
  for (Parameter& parameter : weights.all()) parameter.start_gradient();
  const LossResult result = head.loss_with_gradients({hidden}, context, scalar(0.25));
  std::vector<std::pair<at::Tensor, at::Tensor>> moved = {{hidden, result.input_gradients.at(0)}};
  for (Parameter& parameter : weights.all()) moved.emplace_back(parameter.value(), parameter.gradient());
  const at::NoGradGuard no_grad;
  double expected = 0;
  std::vector<at::Tensor> directions;
  for (const auto& [tensor, gradient] : moved) {
    directions.push_back(random_double(tensor.sizes(), 70 + directions.size()));
    expected += (gradient * directions.back()).sum().item<double>();
  }
  const auto loss_at = [&](double step) {
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i].first.add_(directions[i], step);
    return 0.25 * head.loss({hidden}, context, /*with_logits=*/false).token_loss.sum().item<double>();
  };
  const double above = loss_at(1e-5);
  const double below = loss_at(-2e-5);
  EXPECT_NEAR((above - below) / 2e-5, expected, 1e-6 * std::max(1.0, std::abs(expected)));
}

TEST(ListHead, TheDerivativeOfALossIsThatOfItsSum) {
  for (const bool adapted : {false, true})
    for (const double cap : {0.0, 2.0}) expect_derivative_of_loss(adapted, cap);
}

TEST(ListHead, AnAdapterGivesTheLossAndTheLogitsOfTheSumOfItsMatrices) {
  Weights weights;
  const CallList list = head_list(weights, /*adapted=*/true);
  Weights merged;
  const CallList plain = head_list(merged, /*adapted=*/false);
  const auto resources = std::make_shared<const LayerResources>();
  ListHead head(list, list, weights.lookup(), resources);
  ListHead of_merged(plain, plain, merged.lookup(), resources);
  const at::NoGradGuard no_grad;
  const auto value = [&](const char* name) { return weights.lookup()(name).value(); };
  merged.lookup()("norm").value().copy_(value("norm"));
  merged.lookup()("out").value().copy_(value("out") + 0.75 * value("b").matmul(value("a")));
  const BatchTensors batch(made_up_batch(kRowsOfBatch, kLength, 50));
  Context context;
  context.batch = &batch;
  const Bundle hidden = {random_double({kTokens, 12}, 1)};
  const auto largest = [](const at::Tensor& difference) { return difference.abs().max().item<double>(); };
  EXPECT_LT(largest(head.loss(hidden, context, false).token_loss -
                    of_merged.loss(hidden, context, false).token_loss),
            1e-12);
  EXPECT_LT(largest(head.last_logits(hidden, context) - of_merged.last_logits(hidden, context)), 1e-5);
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
        values.push_back(writer.call(kRmsNorm, name, {any()}, {weights.add(name, {kWidth})},
                                     NormAttributes{1e-5, static_cast<double>(draw.below(2))}));
        break;
      case 1:
        values.push_back(writer.call(kLinear, name, {any()}, {weights.add(name, {kWidth, kWidth})}));
        break;
      case 2:
        values.push_back(writer.call(kBias, name, {any()}, {weights.add(name, {kWidth})}));
        break;
      case 3: {
        const int wide = writer.call(kLinear, name + "w", {any()}, {weights.add(name, {2 * kWidth, kWidth})});
        values.push_back(writer.call(kSwiglu, name, {wide}, {}, SwigluAttributes{}));
        break;
      }
      case 4:  // another name for the same memory
        values.push_back(writer.call(kExchange, name, {any()}, {}, ExchangeAttributes{}));
        break;
      default:
        values.push_back(writer.call(kResidualAdd, name, {any(), any()}, {}, ResidualAttributes{}));
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
