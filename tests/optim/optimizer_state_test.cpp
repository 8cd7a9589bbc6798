// SPDX-License-Identifier: Apache-2.0
// Optimizer state and weights move from one layout to another.
#include "stepforge/optim/optimizer_state.h"

#include <gtest/gtest.h>

#include "stepforge/fsdp/model_state.h"
#include "tests/fsdp/sharded_models.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

const GetStateOptions kSaved{.full_state_dict = true, .cpu_offload = true};

void train(Model& model, ShardedAdamW& optimizer, int rank, int steps) {
  for (int step = 0; step < steps; ++step) {
    plain_step(model, rank, step);
    optimizer.step();
    model.zero_grad();
  }
}

TEST(OptimizerState, HasTheMomentsAndTheStepOfEveryParameter) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh);
    ShardedAdamW optimizer(model, AdamWOptions{});
    const StateDict fresh = get_optimizer_state_dict(optimizer, {.full_state_dict = true});
    if (!std::get<at::Tensor>(fresh.at("state.first.weight.exp_avg_sq")).eq(0).all().template item<bool>())
      return "not zero at the start";
    train(model, optimizer, mesh->rank(), 3);
    const StateDict values = get_optimizer_state_dict(optimizer, {.full_state_dict = true});
    for (const auto& [name, value] : values_of(model)) {
      if (std::get<at::Tensor>(values.at("state." + name + ".step")).template item<int64_t>() != 3)
        return "wrong step of " + name;
    }
    return values.size() == 3 * values_of(model).size() ? "" : "wrong number of values";
  });
}

TEST(OptimizerState, IsSavedOnRankZeroEvenIfTheFirstUnitIsReplicated) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Model model;
    FullyShardOptions whole;
    whole.replicate_params = model->parameters();
    fully_shard(model, mesh, whole);
    ShardedAdamW optimizer(model, AdamWOptions{});
    train(model, optimizer, mesh->rank(), 2);
    StateDict values = get_optimizer_state_dict(optimizer, kSaved);
    if (values.empty() != (mesh->rank() != 0)) return "not on rank 0 alone";
    load_optimizer_state_dict(optimizer, values, {.broadcast_from_rank0 = true});
    const auto assign = [&] { load_optimizer_state_dict(optimizer, values, {.assign = true}); };
    return contains(message_of<UsageError>(assign), "without assign") ? "" : "assigned";
  });
}

TEST(OptimizerState, TrainingContinuesWithTheSameBitsInAnotherLayout) {
  // Every rank trains on the same rows, so that all layouts have the same gradients bit for bit.
  StateDict weights;
  StateDict moments;
  std::map<std::string, at::Tensor> expected;
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh, {.partition = {PartitionKind::by_dim, 0}});
    ShardedAdamW optimizer(model, {.lr = 0.01});
    train(model, optimizer, 0, 2);
    StateDict of_model = get_state_dict(model, kSaved);
    StateDict of_optimizer = get_optimizer_state_dict(optimizer, kSaved);
    train(model, optimizer, 0, 2);
    auto values = values_of(model);
    if (mesh->rank() != 0) return "";
    weights = std::move(of_model);
    moments = std::move(of_optimizer);
    expected = std::move(values);
    return "";
  });
  for (const int ranks : {1, 2, 4}) {
    expect_on_ranks(ranks, {-1}, [&](const auto& mesh, auto&) -> std::string {
      Model model;
      shard_all(model, mesh);
      ShardedAdamW optimizer(model, {.lr = 0.01});
      const LoadStateOptions from_rank0{.broadcast_from_rank0 = true};
      const bool main = mesh->rank() == 0;
      load_state_dict(model, main ? weights : StateDict{}, from_rank0);
      load_optimizer_state_dict(optimizer, main ? moments : StateDict{}, from_rank0);
      for (const auto* state : optimizer.state()) {
        if (!state->steps.eq(2).all().template item<bool>()) return "wrong step";
      }
      train(model, optimizer, 0, 2);
      return difference(values_of(model), expected);
    });
  }
}

}  // namespace
}  // namespace stepforge::testing
