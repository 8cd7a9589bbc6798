// SPDX-License-Identifier: Apache-2.0
// Experts that are spread over ranks, against all experts on one rank.
#include "stepforge/storage/expert_collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/expert_layers.h"
#include "stepforge/nn/expert_functions.h"
#include "stepforge/storage/unit_store.h"
#include "tests/kernels/compare.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr ExpertDims kSpreadDims{.width = 24, .hidden = 20, .experts = 6, .chosen = 2};

/// A unit of the experts of one rank, with the values of the whole.
struct SpreadExperts {
  explicit SpreadExperts(const ExpertParallel& parallel)
      : units({UnitSpec{.name = "experts", .parameters = parameters(parallel)}}),
        store(units, rank_layout(units)) {
    const int64_t own = kSpreadDims.experts / parallel.degree;
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor whole = random_tensor(
          {kSpreadDims.experts, units[0].parameters[i].shape[0] / own, units[0].parameters[i].shape[1]},
          60 + i);
      at::Tensor master = store.unit(0).master_view(i);
      master.copy_(whole.narrow(0, parallel.rank * own, own).reshape(master.sizes()));
    }
    store.unit(0).start_gradient();
  }
  static std::vector<ParameterSpec> parameters(const ExpertParallel& parallel) {
    LayerSpec layer = expert_layer("mlp", "mlp.", kSpreadDims, qwen_expert_names(), 0.02, false, parallel);
    if (parallel.degree > 1) return layer.expert_parameters;
    return {layer.parameters.at(2), layer.parameters.at(3)};
  }
  Parameter& gate_up() { return store.parameter("mlp.expert_gate_up"); }
  Parameter& down() { return store.parameter("mlp.expert_down"); }

  std::vector<UnitSpec> units;
  ModelStore store;
};

/// The tokens of a rank and the experts that they take.
struct SpreadTokens {
  at::Tensor x;
  at::Tensor weights;
  at::Tensor indices;
  at::Tensor gradient;
};

SpreadTokens tokens_of(int rank, int64_t tokens, const std::function<int32_t(int64_t slot)>& expert) {
  const auto seed = static_cast<uint64_t>(10 * rank);
  SpreadTokens made{random_tensor({tokens, kSpreadDims.width}, seed + 1),
                    random_tensor({tokens, kSpreadDims.chosen}, seed + 2).abs(),
                    at::empty({tokens, kSpreadDims.chosen}, at::kInt),
                    random_tensor({tokens, kSpreadDims.width}, seed + 3)};
  auto* indices = made.indices.mutable_data_ptr<int32_t>();
  for (int64_t slot = 0; slot < made.indices.numel(); ++slot) indices[slot] = expert(slot);
  return made;
}

struct SpreadResult {
  at::Tensor out, x, weights;
};

SpreadResult run_tokens(const SpreadTokens& tokens, SpreadExperts& experts, const ExpertExchange& exchange) {
  const at::Tensor x = tokens.x.clone().set_requires_grad(true);
  const at::Tensor weights = tokens.weights.clone().set_requires_grad(true);
  const RoutedTokens routed{weights, tokens.indices};
  const at::Tensor out =
      exchange.several()
          ? run_spread_experts(x, routed, kSpreadDims.experts, experts.gate_up(), experts.down(), exchange)
          : run_experts(x, routed, kSpreadDims.experts, experts.gate_up(), experts.down());
  torch::autograd::backward({out}, {tokens.gradient});
  return {out.detach(), x.grad(), weights.grad()};
}

/// Runs the tokens of every rank on spread experts, and all of them on whole ones.
void expect_spread_is_whole(int degree, const std::vector<SpreadTokens>& tokens) {
  SpreadExperts whole{{}};
  const auto joined = [&](at::Tensor SpreadTokens::* part) {
    std::vector<at::Tensor> parts;
    for (const SpreadTokens& of_rank : tokens) parts.push_back(of_rank.*part);
    return at::cat(parts);
  };
  const SpreadResult expected = run_tokens({joined(&SpreadTokens::x), joined(&SpreadTokens::weights),
                                            joined(&SpreadTokens::indices), joined(&SpreadTokens::gradient)},
                                           whole, {});
  const auto body = [&](World& world) -> std::string {
    const RankLayout layout = rank_layout({}, {.dims = {.ep = degree}}, {world.rank(), world.size()});
    const GroupCommunicators groups(world, layout, {{layout.expert_group, Lane::compute}});
    const ExpertParallel parallel{world.rank(), degree};
    SpreadExperts experts(parallel);
    const SpreadResult actual =
        run_tokens(tokens.at(static_cast<size_t>(world.rank())), experts, expert_exchange(groups, parallel));
    int64_t begin = 0;
    for (int rank = 0; rank < world.rank(); ++rank) begin += tokens[static_cast<size_t>(rank)].x.size(0);
    const auto of_rank = [&](const at::Tensor& all) { return all.narrow(0, begin, actual.out.size(0)); };
    expect_close(actual.out, of_rank(expected.out), 2e-6, "out");
    expect_close(actual.x, of_rank(expected.x), 2e-6, "gradient of x");
    expect_close(actual.weights, of_rank(expected.weights), 2e-6, "gradient of weights");
    for (const char* name : {"mlp.expert_gate_up", "mlp.expert_down"}) {
      const at::Tensor own = experts.store.parameter(name).gradient();
      expect_close(own,
                   whole.store.parameter(name).gradient().narrow(0, world.rank() * own.size(0), own.size(0)),
                   4e-6, name);
    }
    return "";
  };
  for (const std::string& result : as_threads().run(degree, body, {60, 60})) EXPECT_EQ(result, "");
}

TEST(SpreadExperts, ResultsAndGradientsAreThoseOfWholeExperts) {
  for (const int degree : {2, 3, 6}) {
    std::vector<SpreadTokens> tokens;
    for (int rank = 0; rank < degree; ++rank)
      tokens.push_back(tokens_of(rank, 5 + 7 * rank, [&](int64_t slot) {
        return static_cast<int32_t>((slot * slot + rank + slot % 2) % kSpreadDims.experts);
      }));
    expect_spread_is_whole(degree, tokens);
  }
}

TEST(SpreadExperts, ARankWhoseExpertsNoTokenTakesWorks) {
  for (const int32_t first : {0, 4}) {
    std::vector<SpreadTokens> tokens;
    for (int rank = 0; rank < 3; ++rank)
      tokens.push_back(
          tokens_of(rank, 6, [&](int64_t slot) { return first + static_cast<int32_t>(slot % 2); }));
    expect_spread_is_whole(3, tokens);
  }
}

TEST(SpreadExperts, ARankWithoutTokensWorks) {
  std::vector<SpreadTokens> tokens;
  for (int rank = 0; rank < 2; ++rank)
    tokens.push_back(
        tokens_of(rank, rank == 0 ? 9 : 0, [](int64_t slot) { return static_cast<int32_t>(slot % 6); }));
  expect_spread_is_whole(2, tokens);
}

TEST(SpreadExperts, ExpertsThatAreNotDividedAsTheExchangeSaysAreRefused) {
  SpreadExperts experts({0, 2});
  const SpreadTokens tokens = tokens_of(0, 4, [](int64_t) { return 0; });
  const ExpertExchange three{{0, 3}, {}};
  EXPECT_CONTAINS(message_of<Error>([&] { run_tokens(tokens, experts, three); }),
                  "mlp.expert_down: this rank has 3 of 6 experts, but they are spread over 3 ranks");
}

}  // namespace
}  // namespace stepforge::testing
