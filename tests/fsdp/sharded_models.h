// SPDX-License-Identifier: Apache-2.0
// Small modules under fully_shard with integer values: the results of several ranks have the bits of one
// rank's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <torch/nn/module.h>

#include "stepforge/base/format.h"
#include "stepforge/fsdp/fully_shard.h"
#include "stepforge/fsdp/unit_tree.h"
#include "tests/fsdp/counting_world.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {

/// Integers from -2 to 2 that depend on `seed` and index.
inline at::Tensor integers(at::IntArrayRef shape, int64_t seed) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const at::Tensor index = at::arange(count, at::kLong);
  return ((index * 7 + index * index + seed * 3).remainder(5) - 2).to(at::kFloat).view(shape);
}

/// y = x w^T + b.
struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t in, int64_t out, int64_t seed) {
    weight = register_parameter("weight", integers({out, in}, seed));
    bias = register_parameter("bias", integers({out}, seed + 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (before) before();
    return at::matmul(x, weight.t()) + bias;
  }
  at::Tensor weight;
  at::Tensor bias;
  std::function<void()> before;  ///< runs at the start of forward
};

/// Two layers, each its own unit, and parameters of the root.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_module("first", first);
    register_module("second", second);
    scale = register_parameter("scale", integers({3}, 5));
    single = register_parameter("single", integers({1}, 8));
    scalar = register_parameter("scalar", integers({}, 4));
    unused = register_parameter("unused", integers({17, 2}, 6));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = first(x);
    for (int i = 0; i < repeats; ++i) hidden = hidden + first(x);
    hidden = second(hidden) * scale + single * scalar;
    return use_unused ? hidden + unused.sum() : hidden;
  }
  Sharded<LayerImpl> first{5, 7, 1};
  Sharded<LayerImpl> second{7, 3, 2};
  at::Tensor scale;
  at::Tensor single;
  at::Tensor scalar;
  at::Tensor unused;
  int repeats = 0;  ///< further calls of `first` in each forward
  bool use_unused = false;
};

using Model = Sharded<ModelImpl>;

inline void shard_all(Model& model, const std::shared_ptr<ShardMesh>& mesh,
                      const FullyShardOptions& options = {}) {
  fully_shard(model->first, mesh, options);
  fully_shard(model->second, mesh, options);
  fully_shard(model, mesh, options);
}

/// A rank's rows of a step.
inline at::Tensor rows_of(int rank, int step) {
  return integers({3, 5}, 11 * rank + 5 * step);
}

/// All values of the model, gathered.
inline std::map<std::string, at::Tensor> values_of(const ShardedModule& model) {
  const at::NoGradGuard no_grad;
  const auto units = units_in(*model.module());
  for (const auto& entry : units) entry.unit->unshard(/*wait=*/true);
  std::map<std::string, at::Tensor> values;
  for (const auto& parameter : model.module()->named_parameters()) {
    values[parameter.key()] =
        parameter.value().detach().to(at::device(at::kCPU).dtype(at::kFloat), false, /*copy=*/true);
  }
  for (const auto& entry : units) entry.unit->reshard();
  return values;
}

/// The first difference, or "".
inline std::string difference(const std::map<std::string, at::Tensor>& found,
                              const std::map<std::string, at::Tensor>& expected) {
  if (found.size() != expected.size()) return "different number of parameters";
  for (const auto& [name, value] : expected) {
    if (!found.contains(name)) return name + " is missing";
    if (!at::equal(found.at(name), value)) return name + " differs";
  }
  return "";
}

/// An update after which the values are again integers from -2 to 2. A gradient of zero changes nothing.
inline void snap_update(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    parameter.copy_((parameter - parameter.grad() + 2).remainder(5) - 2);
  }
}

/// The values on one rank after `steps` steps with the summed gradients of `ranks` ranks.
template <typename Train>
std::map<std::string, at::Tensor> one_rank(int ranks, int steps, const Train& train) {
  Model model;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) train(model, rank, step);
    snap_update(model->parameters());
    model->zero_grad();
  }
  return values_of(model);
}

/// The forward and backward of one rank.
inline void plain_step(Model& model, int rank, int step) {
  model(rows_of(rank, step)).sum().backward();
}

/// The number of ranks of a mesh of `degrees`, without -1.
inline int ranks_of(const std::vector<int64_t>& degrees) {
  int64_t ranks = 1;
  for (const int64_t degree : degrees) ranks *= degree;
  return static_cast<int>(ranks);
}

/// Runs `body` on ranks that share a mesh of `degrees`; each result must be "".
inline void expect_on_ranks(
    int ranks, const std::vector<int64_t>& degrees,
    const std::function<std::string(const std::shared_ptr<ShardMesh>&, CountingWorld&)>& body,
    const std::string& name = "") {
  const auto results = run_threads(ranks, [&](World& world) -> std::string {
    CountingWorld counting(world);
    try {
      const auto mesh = std::make_shared<ShardMesh>(counting, degrees);
      return body(mesh, counting);
    } catch (const std::exception& failure) {
      world.abort(failure.what());
      throw;
    }
  });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank], "") << name << ", rank " << rank << " of " << ranks;
  }
}

}  // namespace stepforge::testing
