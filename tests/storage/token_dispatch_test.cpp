// SPDX-License-Identifier: Apache-2.0
// Experts that are spread over ranks, against all experts on one rank.
#include "stepforge/storage/token_dispatch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/expert_layers.h"
#include "stepforge/nn/list_block.h"
#include "stepforge/storage/expert_parts.h"
#include "stepforge/storage/group_communicators.h"
#include "stepforge/storage/unit_store.h"
#include "tests/kernels/compare.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr ExpertDims kSpreadDims{.width = 24, .hidden = 20, .experts = 6, .chosen = 2};

constexpr ExpertDims kBiasedDims{.width = 24, .hidden = 20, .experts = 6, .chosen = 2, .biased = true};

/// A unit of the experts of one rank, with the values of the whole.
struct SpreadExperts {
  SpreadExperts(const ExpertDims& of, const ExpertParallel& ranks)
      : dims(of),
        parallel(ranks),
        units({UnitSpec{.name = "experts", .parameters = parameters()}}),
        store(units, rank_layout(units)),
        block(part().list, part().generation, store.lookup(), std::make_shared<const LayerResources>()) {
    for (size_t p = 0; p < units[0].parameters.size(); ++p) {
      at::Tensor master = store.unit(0).master_view(p);
      master.copy_(part_of(random_tensor(whole_shape(p), 60 + p), p).reshape(master.sizes()));
    }
    store.unit(0).start_gradient();
  }
  /// Of parameter `p`, by experts.
  std::vector<int64_t> whole_shape(size_t p) const {
    if (dims.biased) return units[0].parameters[p].tensor_shape(0);
    if (p == 0) return {dims.experts, 2, dims.hidden, dims.width};
    return {dims.experts, dims.width, dims.hidden};
  }
  /// The values of this rank's experts, from those of all experts.
  at::Tensor part_of(at::Tensor whole, size_t p) const {
    if (dims.biased) {
      const TensorSlice held = units[0].parameters[p].slice_of(0);
      for (size_t d = 0; d < held.sizes.size(); ++d)
        whole = whole.narrow(static_cast<int64_t>(d), held.offsets[d], held.sizes[d]);
      return whole;
    }
    const ShardRange own = parallel.part_of(dims.experts);
    const ShardRange held = parallel.units_of(dims.hidden);
    return whole.narrow(0, own.begin, own.size()).narrow(2, held.begin, held.size());
  }
  LayerSpec part() const {
    const ExpertNames names = dims.biased ? gpt_oss_expert_names() : qwen_expert_names();
    return expert_parts("mlp", "mlp.", dims, names, 0.02, false,
                        {.experts = true, .biased_experts = dims.biased},
                        {.options = {.chosen = dims.chosen}}, parallel)
        .experts;
  }
  std::vector<ParameterSpec> parameters() const { return part().parameters; }
  /// Of each token the sum over its experts. The block takes rows with one expert each.
  at::Tensor run(const at::Tensor& tokens, const at::Tensor& weights, const at::Tensor& indices) {
    const int64_t chosen = indices.size(1);
    const BatchTensors batch(made_up_batch(1, 8, 16));
    Context context;
    context.batch = &batch;
    const at::Tensor results =
        forward_in_graph(block,
                         {tokens.repeat_interleave(chosen, 0), weights.reshape({-1, 1}),
                          indices.reshape({-1, 1}).contiguous()},
                         context)
            .front();
    return results.view({tokens.size(0), chosen, results.size(1)}).sum(1);
  }
  at::Tensor gradient(size_t p) { return store.parameter(units[0].parameters[p].name).gradient(); }

  ExpertDims dims;
  ExpertParallel parallel;
  std::vector<UnitSpec> units;
  ModelStore store;
  ListBlock block;
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

SpreadResult run_whole(const SpreadTokens& tokens, SpreadExperts& experts) {
  const at::Tensor x = tokens.x.clone().set_requires_grad(true);
  const at::Tensor weights = tokens.weights.clone().set_requires_grad(true);
  const at::Tensor out = experts.run(x, weights, tokens.indices);
  torch::autograd::backward({out}, {tokens.gradient});
  return {out.detach(), x.grad(), weights.grad()};
}

constexpr DispatchMethod kMethods[] = {DispatchMethod::all_to_all, DispatchMethod::all_gather};

DispatchedRows dispatch(DispatchMethod method, const SpreadTokens& tokens, int64_t parts,
                        Communicator& ranks) {
  return dispatch_tokens(method, {tokens.x, tokens.weights, tokens.indices, kSpreadDims.experts, parts},
                         ranks);
}

/// Forward and backward as the operations of a step.
SpreadResult run_spread(DispatchMethod method, const SpreadTokens& tokens, SpreadExperts& experts,
                        int64_t parts, Communicator& ranks) {
  const DispatchedRows came = dispatch(method, tokens, parts, ranks);
  const at::Tensor rows = came.rows.detach().set_requires_grad(true);
  const at::Tensor weights = came.weights.detach().set_requires_grad(true);
  const at::Tensor results = experts.run(rows, weights, came.experts);
  at::Tensor out = came.routes->combine(results.detach(), ranks);
  torch::autograd::backward({results}, {came.routes->combine_gradient(tokens.gradient, ranks)});
  const TokenGradients gradients = came.routes->dispatch_gradient(rows.grad(), weights.grad(), ranks);
  return {std::move(out), gradients.tokens, gradients.weights};
}

/// Runs the tokens of every rank on spread experts, and all of them on whole ones.
void expect_spread_is_whole(DispatchMethod method, const ExpertDims& dims, int degree,
                            const std::vector<SpreadTokens>& tokens, int parts) {
  SpreadExperts whole(dims, {});
  const auto joined = [&](at::Tensor SpreadTokens::* part) {
    std::vector<at::Tensor> parts;
    for (const SpreadTokens& of_rank : tokens) parts.push_back(of_rank.*part);
    return at::cat(parts);
  };
  const SpreadResult expected = run_whole({joined(&SpreadTokens::x), joined(&SpreadTokens::weights),
                                           joined(&SpreadTokens::indices), joined(&SpreadTokens::gradient)},
                                          whole);
  const auto body = [&](World& world) -> std::string {
    const RankLayout layout = rank_layout({}, {.dims = {.tp = parts, .ep = degree / parts, .etp = parts}},
                                          {world.rank(), world.size()});
    const GroupCommunicators groups(world, layout, {{layout.expert_group, Lane::exchange}});
    const ExpertParallel parallel{.rank = world.rank(), .degree = degree, .parts = parts};
    SpreadExperts experts(dims, parallel);
    const SpreadResult actual = run_spread(method, tokens.at(static_cast<size_t>(world.rank())), experts,
                                           parts, *groups.at(layout.expert_group, Lane::exchange));
    int64_t begin = 0;
    for (int rank = 0; rank < world.rank(); ++rank) begin += tokens[static_cast<size_t>(rank)].x.size(0);
    const auto of_rank = [&](const at::Tensor& all) { return all.narrow(0, begin, actual.out.size(0)); };
    expect_close(actual.out, of_rank(expected.out), 2e-6, "out");
    expect_close(actual.x, of_rank(expected.x), 2e-6, "gradient of x");
    expect_close(actual.weights, of_rank(expected.weights), 2e-6, "gradient of weights");
    for (size_t p = 0; p < experts.units[0].parameters.size(); ++p) {
      const at::Tensor own = experts.gradient(p);
      const at::Tensor all = whole.gradient(p).view(whole.whole_shape(p));
      expect_close(own, experts.part_of(all, p).reshape(own.sizes()), 4e-6,
                   experts.units[0].parameters[p].name.c_str());
    }
    return "";
  };
  for (const std::string& result : as_threads().run(degree, body, {60, 60})) EXPECT_EQ(result, "");
}

void expect_spread_is_whole(int degree, const std::vector<SpreadTokens>& tokens, int parts = 1) {
  for (const ExpertDims& dims : {kSpreadDims, kBiasedDims}) {
    SCOPED_TRACE(dims.biased ? "with biases" : "without biases");
    for (const DispatchMethod method : kMethods) expect_spread_is_whole(method, dims, degree, tokens, parts);
  }
}

/// What a rank gets of tokens, results and gradients that are small integers, so that all sums are exact.
std::vector<at::Tensor> exchanged(DispatchMethod method, const SpreadTokens& tokens, int64_t parts,
                                  Communicator& ranks) {
  const DispatchedRows came = dispatch(method, tokens, parts, ranks);
  const auto rounded = [](const at::Tensor& values) { return values.mul(16).round(); };
  const at::Tensor results = rounded(came.rows).add_(ranks.rank());
  const TokenGradients gradients =
      came.routes->dispatch_gradient(results.neg(), rounded(came.weights), ranks);
  return {came.rows,
          came.weights,
          came.experts,
          came.routes->combine(results, ranks),
          came.routes->combine_gradient(tokens.gradient, ranks),
          gradients.tokens,
          gradients.weights};
}

TEST(SpreadExperts, EveryMethodExchangesTheSameBits) {
  for (const auto& [degree, parts] : {std::pair{2, 1}, std::pair{3, 1}, std::pair{6, 3}, std::pair{4, 2}}) {
    const auto body = [parts = parts, degree = degree](World& world) -> std::string {
      std::vector<int> members;
      for (int rank = 0; rank < degree; ++rank) members.push_back(rank);
      const auto ranks = world.group("ep", members);
      // Ranks with different numbers of tokens, one of which has none.
      const SpreadTokens tokens = tokens_of(world.rank(), 5 * world.rank(), [&](int64_t slot) {
        return static_cast<int32_t>((slot * slot + world.rank() + slot % 2) % kSpreadDims.experts);
      });
      const auto expected = exchanged(DispatchMethod::all_to_all, tokens, parts, *ranks);
      const auto actual = exchanged(DispatchMethod::all_gather, tokens, parts, *ranks);
      std::string differ;
      for (size_t i = 0; i < expected.size(); ++i)
        if (!at::equal(actual[i], expected[i])) differ += format(" {}", i);
      return differ;
    };
    for (const std::string& differ : as_threads().run(degree, body, {60, 60}))
      EXPECT_EQ(differ, "") << degree << " ranks, " << parts << " parts";
  }
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

/// With three parts their sizes differ.
TEST(SpreadExperts, ResultsAndGradientsOfPartsAreThoseOfWholeExperts) {
  for (const auto& [degree, parts] : {std::pair{2, 2}, std::pair{3, 3}, std::pair{6, 3}, std::pair{4, 2}}) {
    std::vector<SpreadTokens> tokens;
    for (int rank = 0; rank < degree; ++rank)
      tokens.push_back(tokens_of(rank, 5 + 7 * rank, [&](int64_t slot) {
        return static_cast<int32_t>((slot * slot + rank + slot % 2) % kSpreadDims.experts);
      }));
    expect_spread_is_whole(degree, tokens, parts);
  }
}

TEST(SpreadExperts, PartsOfExpertsThatCannotBeSpreadEvenlyAreRefused) {
  const SpreadTokens tokens = tokens_of(0, 4, [](int64_t) { return 0; });
  EXPECT_CONTAINS(message_of<Error>([&] { choose_parts(tokens.weights, tokens.indices, 6, 2, 8); }),
                  "6 experts of 2 parts cannot be spread evenly over 8 ranks");
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

TEST(SpreadExperts, ExpertsThatCannotBeSpreadEvenlyAreRefused) {
  const SpreadTokens tokens = tokens_of(0, 4, [](int64_t) { return 0; });
  for (const DispatchMethod method : kMethods) {
    const auto refused =
        as_threads().run(4,
                         [&](World& world) {
                           const auto ranks = world.group("ep", {0, 1, 2, 3});
                           return message_of<Error>([&] { dispatch(method, tokens, 1, *ranks); });
                         },
                         {60, 60});
    for (const std::string& message : refused)
      EXPECT_CONTAINS(message, "6 experts cannot be spread evenly over 4 ranks");
  }
}

TEST(SpreadExperts, AChoiceOfNoExpertIsRefused) {
  for (const int32_t expert : {-1, 6}) {
    const SpreadTokens tokens = tokens_of(0, 4, [&](int64_t slot) { return slot == 5 ? expert : 0; });
    for (const DispatchMethod method : kMethods) {
      const auto world = single_world();
      const auto ranks = world->group("ep", {0});
      EXPECT_CONTAINS(message_of<Error>([&] { dispatch(method, tokens, 1, *ranks); }),
                      format("token 2 takes expert {} of 6", expert));
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
