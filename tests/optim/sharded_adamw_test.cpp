// SPDX-License-Identifier: Apache-2.0
// The optimizer and clipping of sharded modules against torch's on one rank.
#include "stepforge/optim/sharded_adamw.h"

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "stepforge/optim/clip_grad_norm.h"
#include "tests/fsdp/sharded_models.h"

namespace stepforge::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::vector<int64_t>> meshes() {
  return {{1}, {2}, {3}, {4}, {2, 2}, {4, 1}};
}

/// Called before each step.
using Prepare = std::function<void(Model&, int step)>;

/// The values of the plain model after steps of torch::optim::AdamW.
std::map<std::string, at::Tensor> torch_adamw(int ranks, int steps, const Prepare& prepare = {}) {
  Model model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.05));
  for (int step = 0; step < steps; ++step) {
    if (prepare) prepare(model, step);
    for (int rank = 0; rank < ranks; ++rank) plain_step(model, rank, step);
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.requires_grad() && !parameter.grad().defined())
        parameter.mutable_grad() = at::zeros_like(parameter);
    }
    optimizer.step();
    model->zero_grad();
  }
  return values_of(model);
}

std::string near(const std::map<std::string, at::Tensor>& found,
                 const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, value] : expected) {
    const double error = (found.at(name) - value).abs().max().item<double>();
    if (!(error < 1e-4)) return format("{} is off by {}", name, error);
  }
  return "";
}

TEST(ShardedAdamW, MatchesTorchOnOneRank) {
  for (const auto& degrees : meshes()) {
    const auto expected = torch_adamw(ranks_of(degrees), 5);
    for (const bool own : {true, false}) {
      expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) -> std::string {
        Model model;
        shard_all(model, mesh);
        model.set_reduce_op(ReduceOp::sum, true);
        ShardedAdamW optimizer(model, AdamWOptions{.lr = 0.1, .weight_decay = 0.05});
        torch::optim::AdamW theirs(model.parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.05));
        for (int step = 0; step < 5; ++step) {
          plain_step(model, mesh->rank(), step);
          if (own) {
            optimizer.step();
          } else {
            theirs.step();
          }
          model.zero_grad();
        }
        return near(values_of(model), expected);
      });
    }
  }
}

TEST(ShardedAdamW, AParameterUnfrozenLaterMatchesTorch) {
  // One is frozen when it is sharded and so stored in its own group; the other is between trained ones.
  const auto freeze = [](Model& model, int step) {
    model->first->weight.set_requires_grad(step >= 3);
    model->second->weight.set_requires_grad(step >= 2);
  };
  for (const auto& degrees : meshes()) {
    const auto expected = torch_adamw(ranks_of(degrees), 6, freeze);
    expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) -> std::string {
      Model model;
      model->first->weight.set_requires_grad(false);
      shard_all(model, mesh);
      model.set_reduce_op(ReduceOp::sum, true);
      ShardedAdamW optimizer(model, AdamWOptions{.lr = 0.1, .weight_decay = 0.05});
      for (int step = 0; step < 6; ++step) {
        freeze(model, step);
        plain_step(model, mesh->rank(), step);
        optimizer.step();
        model.zero_grad();
      }
      return near(values_of(model), expected);
    });
  }
}

TEST(ShardedAdamW, ParametersHaveTheirOwnOptionsAndFrozenOnesHaveNoState) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Model model;
    model->second->weight.set_requires_grad(false);
    const auto before = values_of(model);
    shard_all(model, mesh);
    ShardedAdamW optimizer(model, [](const std::string& name) {
      return AdamWOptions{.lr = name.ends_with("bias") ? 0.0 : 0.1, .weight_decay = 0.0};
    });
    plain_step(model, mesh->rank(), 0);
    optimizer.step();
    const auto after = values_of(model);
    for (const char* name : {"first.bias", "second.bias", "second.weight"}) {
      if (!at::equal(after.at(name), before.at(name))) return name;
    }
    if (at::equal(after.at("first.weight"), before.at("first.weight"))) return "nothing was updated";
    std::set<std::string> with_state;
    for (const auto* state : optimizer.state()) {
      for (const FsdpParamRef& parameter : optimizer.parameters()) {
        if (parameter.group == state->group) with_state.insert(parameter.name);
      }
      if (state->moments.slots()[1].numel() != state->group->store().shard_size()) return "different size";
    }
    for (const FsdpParamRef& parameter : optimizer.parameters()) {
      const bool frozen = parameter.name == "second.weight";
      if (with_state.contains(parameter.name) == frozen) return "state of " + parameter.name;
    }
    return "";
  });
}

TEST(ClipGradNorm, EqualsThatOfOneRankForEveryNormTypeMeshAndPartition) {
  for (const auto& degrees : meshes()) {
    for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
      Model plain;
      for (int rank = 0; rank < ranks_of(degrees); ++rank) plain_step(plain, rank, 0);
      double expected = 0.0;
      for (const at::Tensor& parameter : plain->parameters()) {
        if (!parameter.grad().defined()) continue;
        const at::Tensor size = parameter.grad().to(at::kDouble).abs();
        if (size.numel() == 0) continue;
        if (type == kInfinity) {
          expected = std::max(expected, size.max().item<double>());
        } else {
          expected += size.pow(type).sum().item<double>();
        }
      }
      if (type == 2.0) expected = std::sqrt(expected);
      if (type == 3.0) expected = std::cbrt(expected);
      for (const auto kind : {PartitionKind::flat, PartitionKind::by_tensor, PartitionKind::by_dim}) {
        expect_on_ranks(ranks_of(degrees), degrees, [&](const auto& mesh, auto&) -> std::string {
          Model model;
          // A replicated parameter counts once.
          fully_shard(model->first, mesh, {.partition = {kind}, .replicate_params = {model->first->bias}});
          fully_shard(model->second, mesh, {.partition = {kind}});
          fully_shard(model, mesh, {.partition = {kind}});
          model.set_reduce_op(ReduceOp::sum, true);
          plain_step(model, mesh->rank(), 0);
          const double norm = clip_grad_norm(model, 0.5, type);
          if (norm != expected) return format("norm {} of type {}, not {}", norm, type, expected);
          const double clipped = clip_grad_norm(model, 0.5, type);
          return std::abs(clipped - 0.5) < 1e-5 ? "" : format("{} after clipping", clipped);
        });
      }
    }
  }
}

TEST(ClipGradNorm, LeavesSmallGradientsAndRefusesInvalidArguments) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh);
    plain_step(model, mesh->rank(), 0);
    const double norm = clip_grad_norm(model, 1e9);
    if (clip_grad_norm(model, 1e9) != norm) return "changed";
    for (const auto& [max_norm, type] :
         std::vector<std::pair<double, double>>{{1.0, 4.0}, {-1.0, 2.0}, {NAN, 2.0}}) {
      try {
        clip_grad_norm(model, max_norm, type);
        return "accepted";
      } catch (const UsageError&) {
        continue;
      }
    }
    // A NaN on one rank reaches every rank.
    for (const at::Tensor& parameter : model.parameters()) {
      if (mesh->rank() == 0 && parameter.numel() > 0) parameter.grad().view({-1})[0] = NAN;
    }
    if (!std::isnan(clip_grad_norm(model, 1.0, kInfinity))) return "the NaN was lost";
    try {
      clip_grad_norm(model, 1.0, 2.0, /*error_if_nonfinite=*/true);
      return "accepted a NaN";
    } catch (const Error&) {
      return "";
    }
  });
}

}  // namespace
}  // namespace stepforge::testing
