// SPDX-License-Identifier: Apache-2.0
// Modules whose matrices are divided over ranks of tensor parallelism train as on one rank, bit for bit.
#include <mutex>
#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/optim/clip_grad_norm.h"
#include "stepforge/optim/optimizer_state.h"
#include "tests/fsdp/divided_models.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kMicroSteps = 2;

/// After an update: integers from -2 to 2 again, so that the next step is exact.
void snap_to_integers(const DividedModel& model) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters())
    parameter.copy_((parameter.round() + 2).remainder(5) - 2);
}

struct Trained {
  std::vector<double> norms;
  std::map<std::string, at::Tensor> weights;
  std::map<std::string, at::Tensor> moments;
};

std::string first_difference(const Trained& found, const Trained& expected) {
  for (size_t step = 0; step < expected.norms.size(); ++step) {
    if (found.norms.at(step) != expected.norms[step])
      return format("norm {} of step {}, not {}", found.norms[step], step, expected.norms[step]);
  }
  const std::string weights = difference(found.weights, expected.weights);
  return weights.empty() ? difference(found.moments, expected.moments) : weights;
}

/// What a training run varies.
struct Variant {
  std::string name;
  FullyShardOptions options = {};
  LayerOptions of_layer = {};
  std::function<void(DividedModel&)> prepare = {};
  bool sync_at_end = false;  ///< gradients are reduced after the last micro-step only
};

/// Steps [first, last) with clipping, on the rows of `data_ranks`.
void train_divided(DividedModel& model, ShardedAdamW& optimizer, Trained& result, int first, int last,
                   const std::vector<int>& data_ranks, bool sync_at_end = false) {
  for (int step = first; step < last; ++step) {
    for (const int rank : data_ranks) {
      for (int64_t micro = 0; micro < kMicroSteps; ++micro) {
        model.set_requires_gradient_sync(!sync_at_end || micro + 1 == kMicroSteps);
        divided_step(model, micro + kMicroSteps * (rank + 4 * step));
      }
    }
    result.norms.push_back(clip_grad_norm(model, 3.0));
    optimizer.step();
    snap_to_integers(model);
    model.zero_grad();
  }
  result.weights = whole_tensors(get_state_dict(model, {.full_state_dict = true}));
  result.moments = whole_tensors(get_optimizer_state_dict(optimizer, {.full_state_dict = true}));
}

constexpr int kSteps = 4;

Trained trained(const std::shared_ptr<ShardMesh>& mesh, const Variant& variant,
                const std::vector<int>& data_ranks) {
  DividedModel model(*mesh);
  shard_divided(model, mesh, variant.options, variant.of_layer);
  if (variant.prepare) variant.prepare(model);
  ShardedAdamW optimizer(model, {.lr = 0.7});
  Trained result;
  train_divided(model, optimizer, result, 0, kSteps, data_ranks, variant.sync_at_end);
  return result;
}

/// The result of one rank that reads the rows of `data_ranks` ranks.
Trained trained_on_one_rank(int data_ranks, const Variant& variant) {
  Trained result;
  expect_on_ranks(1, {1}, [&](const auto& mesh, auto&) {
    std::vector<int> all(static_cast<size_t>(data_ranks));
    std::iota(all.begin(), all.end(), 0);
    result = trained(mesh, {.name = variant.name, .prepare = variant.prepare}, all);
    return "";
  });
  return result;
}

std::vector<Variant> variants() {
  using Kind = PartitionKind;
  std::vector<Variant> all = {{.name = "plain"}};
  for (const Partition& partition :
       {Partition{Kind::by_tensor}, Partition{Kind::by_dim, 0}, Partition{Kind::by_dim, -1}})
    all.push_back({.name = partition_text(partition), .options = {.partition = partition}});
  all.push_back({.name = "replicated", .of_layer = [](FullyShardOptions& options, DividedLayerImpl& layer) {
                   options.replicate_params = {layer.up, layer.scale};
                 }});
  all.push_back({.name = "frozen", .prepare = [](DividedModel& model) {
                   model->first->up.set_requires_grad(false);
                   model->second->scale.set_requires_grad(false);
                 }});
  all.push_back({.name = "offload", .options = {.cpu_offload = {.enabled = true}}});
  all.push_back({.name = "reduced at the end", .sync_at_end = true});
  all.push_back({.name = "prefetch", .prepare = [](DividedModel& model) {
                   model.set_reshard_after_forward(false);
                   model->first.set_modules_to_forward_prefetch({model->second});
                   model->second.set_modules_to_backward_prefetch({model->first});
                 }});
  return all;
}

TEST(DividedTraining, WeightsNormsAndMomentsAreThoseOfOneRank) {
  for (const Variant& variant : variants()) {
    for (const std::vector<int64_t>& degrees : divided_meshes()) {
      const Trained expected = trained_on_one_rank(static_cast<int>(degrees[0] * degrees[1]), variant);
      EXPECT_GT(expected.norms.back(), 3.0) << "nothing is clipped";
      expect_on_ranks(
          ranks_of(degrees), degrees,
          [&](const auto& mesh, auto&) {
            return first_difference(trained(mesh, variant, {mesh->data_rank()}), expected);
          },
          variant.name);
    }
  }
}

TEST(DividedTraining, ContinuesWithTheSameBitsInAnotherMesh) {
  // Every rank trains on the same rows, so that all meshes have the same gradients up to their average.
  StateDict weights;
  StateDict moments;
  Trained expected;
  std::mutex mutex;
  const auto start = [](const auto& mesh, const auto& body) -> std::string {
    DividedModel model(*mesh);
    shard_divided(model, mesh);
    model.set_reduce_op(ReduceOp::avg, /*recurse=*/true);
    ShardedAdamW optimizer(model, {.lr = 0.7});
    return body(model, optimizer);
  };
  const std::vector<std::vector<int64_t>> meshes = {{1}, {4}, {1, 2, 2}, {2, 1, 2}, {1, 1, 3}};
  for (const std::vector<int64_t>& from : {meshes[2], meshes[1]}) {
    weights.clear();
    moments.clear();
    expect_on_ranks(ranks_of(from), from, [&](const auto& mesh, auto&) {
      return start(mesh, [&](DividedModel& model, ShardedAdamW& optimizer) {
        Trained result;
        train_divided(model, optimizer, result, 0, 2, {0});
        const StateDict of_model = get_state_dict(model, {.cpu_offload = true});
        const StateDict of_optimizer = get_optimizer_state_dict(optimizer, {.cpu_offload = true});
        Trained rest;
        train_divided(model, optimizer, rest, 2, 4, {0});
        const std::lock_guard lock(mutex);
        add_parts(weights, of_model);
        add_parts(moments, of_optimizer);
        expected = rest;
        return "";
      });
    });
    for (const std::vector<int64_t>& degrees : meshes) {
      expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) {
        return start(mesh, [&](DividedModel& model, ShardedAdamW& optimizer) {
          load_state_dict(model, weights);
          load_optimizer_state_dict(optimizer, moments);
          Trained rest;
          train_divided(model, optimizer, rest, 2, 4, {0});
          return first_difference(rest, expected);
        });
      });
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
