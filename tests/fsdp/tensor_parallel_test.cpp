// SPDX-License-Identifier: Apache-2.0
// fully_shard on meshes with tensor parallelism: ranks, sums, gradients, initial values, and refused slices.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/fsdp/divided_models.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(TensorParallelMesh, NeighboursHaveTheSameRowsAndTheirOwnCommunicator) {
  for (const std::vector<int64_t>& degrees : divided_meshes()) {
    expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, CountingWorld& world) -> std::string {
      const int tensor = static_cast<int>(degrees[2]);
      if (mesh->replicas() != degrees[0] || mesh->shards() != degrees[1]) return "shards or replicas";
      if (mesh->ranks() != degrees[0] * degrees[1]) return "ranks of a gradient";
      if (mesh->data_rank() != world.rank() / tensor) return "rows";
      if (mesh->tensor_degree() != tensor || mesh->tensor_rank() != world.rank() % tensor) return "place";
      if (mesh->tensor_ranks()->size() != tensor || mesh->tensor_ranks()->rank() != mesh->tensor_rank())
        return "tensor_ranks";
      return mesh->all_ranks()->size() == world.size() ? "" : "all_ranks";
    });
  }
  expect_on_ranks(4, {1, 2, -1}, [](const auto& mesh, auto&) {
    return mesh->tensor_degree() == 2 ? "" : "the rest is not the degree of tensor parallelism";
  });
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) {
    return mesh->tensor_ranks() == nullptr && mesh->tensor_rank() == 0 && mesh->tensor_degree() == 1
               ? ""
               : "tensor parallelism without an axis";
  });
}

TEST(TensorParallelMesh, DegreesThatDoNotFitAreNamedWithTheirNumbers) {
  expect_on_ranks(2, {2}, [](const auto&, CountingWorld& world) {
    const std::string text = message_of<UsageError>([&] { ShardMesh(world, {2, 3, 4}, "bad"); });
    return contains(text, "dp_replicate 2 x dp_shard 3 x cp 1 x tp 4") && contains(text, "for 2 ranks")
               ? ""
               : text;
  });
}

TEST(TensorSums, ValuesAreSummedInForwardAndGradientsInBackward) {
  expect_on_ranks(6, {1, 2, 3}, [](const auto& mesh, auto&) -> std::string {
    const int64_t own = mesh->tensor_rank() + 1;
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      at::Tensor x = at::full({2, 3}, own, type).set_requires_grad(true);
      const at::Tensor sum = sum_values(x.t(), *mesh);
      if (!sum.eq(1 + 2 + 3).all().template item<bool>() || sum.scalar_type() != type) return "sum of values";
      (sum * own).sum().backward();
      if (!x.grad().eq(own).all().template item<bool>()) return "gradient of sum_values";
      x.mutable_grad() = at::Tensor();
      const at::Tensor input = sum_gradients(x, *mesh);
      if (!at::equal(input, x)) return "value of sum_gradients";
      // Each rank's part of the gradient is its own; another use of x is not summed.
      ((input * own).sum() + (x * 10).sum()).backward();
      if (!x.grad().eq(1 + 2 + 3 + 10).all().template item<bool>()) return "sum of gradients";
    }
    return message_of<Error>([&] { sum_values(at::ones({2}, at::kLong), *mesh); }).empty() ? "integers" : "";
  });
}

TEST(TensorParallel, AnAverageIsOverShardsAndReplicasOnly) {
  for (const std::vector<int64_t>& degrees :
       std::vector<std::vector<int64_t>>{{2, 1, 2}, {1, 2, 2}, {1, 1, 3}}) {
    std::map<std::string, at::Tensor> expected;
    const auto gradients = [](const auto& mesh, bool replicated) {
      DividedModel model(*mesh);
      shard_divided(model, mesh, {}, [&](FullyShardOptions& options, DividedLayerImpl& layer) {
        if (replicated) options.replicate_params = {layer.up, layer.bias};
      });
      model.set_reduce_op(ReduceOp::avg, /*recurse=*/true);
      divided_step(model, 1);  // the same rows on all ranks
      const at::NoGradGuard no_grad;
      for (const at::Tensor& local : model.parameters()) local.copy_(local.grad());
      return whole_tensors(get_state_dict(model, {.full_state_dict = true}));
    };
    expect_on_ranks(1, {1}, [&](const auto& mesh, auto&) {
      expected = gradients(mesh, false);
      return "";
    });
    for (const bool replicated : {false, true}) {
      expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) {
        return difference(gradients(mesh, replicated), expected);
      });
    }
  }
}

/// One divided layer whose values and gradients are so small that bf16 has them exactly.
std::map<std::string, at::Tensor> half_precision_gradients(const std::shared_ptr<ShardMesh>& mesh,
                                                           const MixedPrecision& precision) {
  Sharded<DividedLayerImpl> layer(*mesh);
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : layer->parameters()) parameter.clamp_(-1, 1);
  }
  FullyShardOptions options{.mixed_precision = precision};
  options.sliced_params = layer->sliced;
  fully_shard(layer, mesh, options);
  layer.set_reduce_op(ReduceOp::sum);
  layer(integers({1, kWidth}, 4).clamp(-1, 1)).sum().backward();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& local : layer.parameters()) local.copy_(local.grad() / mesh->ranks());
  return whole_tensors(get_state_dict(layer, {.full_state_dict = true}));
}

TEST(TensorParallel, MixedPrecisionSumsInItsOwnDtypes) {
  std::map<std::string, at::Tensor> expected;
  expect_on_ranks(1, {1}, [&](const auto& mesh, auto&) {
    expected = half_precision_gradients(mesh, {});
    return "";
  });
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const MixedPrecision precision{.param_dtype = type, .reduce_dtype = type, .output_dtype = at::kFloat};
    expect_on_ranks(4, {1, 2, 2}, [&](const auto& mesh, auto&) {
      return difference(half_precision_gradients(mesh, precision), expected);
    });
  }
}

TEST(TensorParallel, InitializeFillsWholeTensorsOfWhichEachRankKeepsItsSlice) {
  for (const std::vector<int64_t>& degrees : divided_meshes()) {
    expect_on_ranks(ranks_of(degrees), degrees, [](const auto& mesh, auto&) -> std::string {
      Sharded<DividedLayerImpl> layer(*mesh, at::kMeta);
      FullyShardOptions options;
      options.sliced_params = layer->sliced;
      options.initialize = [](const std::string& name, at::Tensor value) {
        value.copy_(initial_value(name, value.sizes()));
      };
      fully_shard(layer, mesh, options);
      std::map<std::string, at::Tensor> expected;
      for (const auto& [name, shape] :
           std::map<std::string, std::vector<int64_t>>{{"scale", {kWidth}},
                                                       {"up", {kHidden, kWidth}},
                                                       {"down", {kWidth, kHidden}},
                                                       {"bias", {kWidth}}})
        expected[name] = initial_value(name, shape);
      return difference(whole_tensors(get_state_dict(layer, {.full_state_dict = true})), expected);
    });
  }
}

/// Every rank refuses what `spoil` makes of the options of a layer, which stays as it is.
void expect_refused(const std::vector<int64_t>& degrees,
                    const std::function<void(FullyShardOptions&, DividedLayerImpl&)>& spoil,
                    const std::string& expected) {
  expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) -> std::string {
    Sharded<DividedLayerImpl> layer(*mesh);
    const auto before = values_of(layer);
    FullyShardOptions options;
    options.sliced_params = layer->sliced;
    spoil(options, *layer);
    const std::string text = message_of<UsageError>([&] { fully_shard(layer, mesh, options); });
    if (layer.is_sharded()) return "sharded nevertheless";
    if (const std::string changed = difference(values_of(layer), before); !changed.empty()) return changed;
    return contains(text, expected) ? "" : text;
  });
}

TEST(SlicedParams, ARankWithoutAFaultNamesTheOneThatHasIt) {
  expect_on_ranks(2, {1, 1, 2}, [](const auto& mesh, auto&) -> std::string {
    Sharded<DividedLayerImpl> layer(*mesh);
    FullyShardOptions options;
    options.sliced_params = layer->sliced;
    const bool faulty = mesh->tensor_rank() == 1;
    if (faulty) options.sliced_params[0].shape = {kHidden - 1, kWidth};
    const std::string text = message_of<UsageError>([&] { fully_shard(layer, mesh, options); });
    const std::string begin = faulty ? "sliced_params: " : "rank 1 of tensor parallelism: sliced_params: ";
    return text.starts_with(begin + "parameter up is a slice") ? "" : text;
  });
}

TEST(SlicedParams, ThatDoNotMakeUpTheirTensorsAreRefusedOnAllRanks) {
  const std::vector<int64_t> two = {1, 1, 2};
  const auto up = [](FullyShardOptions& options) -> TensorSliceOf& { return options.sliced_params[0]; };
  expect_refused(two, [&](auto& options, auto&) { up(options).offsets[0] += 3; }, "parameter up is a slice");
  // On one rank only.
  expect_refused(
      two,
      [&](auto& options, auto& layer) {
        if (layer.mesh.tensor_rank() == 1) up(options).shape = {kHidden - 1, kWidth};
      },
      "of a tensor of shape [4, 4]: it must lie inside");
  expect_refused(
      two, [&](auto& options, auto&) { up(options).shape = {kHidden}; }, "the same number of dimensions");
  expect_refused(
      two, [&](auto& options, auto&) { up(options).offsets = {0}; }, "the same number of dimensions");
  expect_refused(two, [&](auto& options, auto&) { up(options).shape = {}; }, "the same number of dimensions");
  expect_refused(
      two, [&](auto& options, auto&) { up(options).offsets = {0, 0}; },
      "parameter up: the slices of ranks 0 and 1 overlap: [0:2, 0:4] and [0:3, 0:4]");
  expect_refused(
      two, [&](auto& options, auto&) { up(options).shape[0] = 8; }, "cover 20 of the 32 elements of [8, 4]");
  expect_refused(
      two, [&](auto& options, auto& layer) { options.sliced_params.push_back({layer.bias, {0}, {kWidth}}); },
      "parameter bias: the slices of ranks 0 and 1 overlap");
  expect_refused(
      two,
      [&](auto& options, auto& layer) {
        if (layer.mesh.tensor_rank() == 1) options.sliced_params.pop_back();
      },
      "the same ones in sliced_params: rank 0 has ");
  expect_refused(
      {1, 2, 1}, [&](auto& options, auto&) { up(options).shape[0] = 2 * kHidden; },
      "cover 20 of the 40 elements of [10, 4]; the degree of tensor parallelism is 1");
}

TEST(SlicedParams, ThatAreNotOfThisUnitAreRefused) {
  const at::Tensor unknown = at::zeros({2});
  expect_refused(
      {2}, [&](auto& options, auto&) { options.sliced_params.push_back({unknown, {0}, {2}}); },
      "sliced_params[2] is not a parameter of unit");
  expect_refused(
      {2}, [&](auto& options, auto& layer) { options.ignored_params = {layer.up}; },
      "sliced_params[0] of unit");
  expect_refused(
      {2}, [&](auto& options, auto&) { options.sliced_params.push_back(options.sliced_params[1]); },
      "sliced_params[2] of unit");
  expect_on_ranks(1, {1}, [](const auto& mesh, auto&) -> std::string {
    DividedModel model(*mesh);
    fully_shard(model->table, mesh);
    FullyShardOptions options{.tied_params = {model->head}};
    options.sliced_params = {{model->head, {0, 0}, {kTokens, kWidth}}};
    const std::string text = message_of<UsageError>([&] { fully_shard(model, mesh, options); });
    return contains(text, "sliced_params[0] of unit", "belongs to another unit") ? "" : text;
  });
}

}  // namespace
}  // namespace stepforge::testing
