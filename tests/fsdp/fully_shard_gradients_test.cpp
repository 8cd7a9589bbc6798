// SPDX-License-Identifier: Apache-2.0
// Gradients under fully_shard: accumulation and reduction; frozen, unused and tied parameters; modules that
// run twice; exceptions.
#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tests/fsdp/sharded_models.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Train = std::function<void(Model&, int rank, int step)>;

/// Expects the weights of one rank after three steps of `train` on every mesh.
void expect_weights_of_one_rank(const Train& train, const FullyShardOptions& options = {},
                                const std::function<void(Model&)>& prepare = {}) {
  for (const auto& degrees : std::vector<std::vector<int64_t>>{{1}, {2}, {3}, {2, 2}, {2, 1}}) {
    const int ranks = ranks_of(degrees);
    const auto expected = one_rank(ranks, 3, [&](Model& model, int rank, int step) {
      if (prepare && rank == 0 && step == 0) prepare(model);
      train(model, rank, step);
    });
    expect_on_ranks(ranks, degrees, [&](const auto& mesh, auto&) -> std::string {
      Model model;
      shard_all(model, mesh, options);
      model.set_reduce_op(ReduceOp::sum, true);
      if (prepare) prepare(model);
      for (int step = 0; step < 3; ++step) {
        train(model, mesh->rank(), step);
        snap_update(model.parameters());
        model.zero_grad();
      }
      return difference(values_of(model), expected);
    });
  }
}

TEST(FullyShardGradients, MicroStepsWithoutReductionLoseNothing) {
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    for (int micro = 0; micro < 3; ++micro) {
      if (model.is_sharded()) model.set_requires_gradient_sync(micro == 2);
      plain_step(model, rank, 3 * step + micro);
    }
  });
}

TEST(FullyShardGradients, EveryReducedBackwardAddsToTheGradient) {
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    for (int micro = 0; micro < 3; ++micro) plain_step(model, rank, 3 * step + micro);
  });
}

TEST(FullyShardGradients, SumsOverShardsAreKeptForTheNextAllReduce) {
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    for (int micro = 0; micro < 3; ++micro) {
      if (model.is_sharded()) model.set_requires_all_reduce(micro != 1);
      plain_step(model, rank, 3 * step + micro);
    }
  });
}

TEST(FullyShardGradients, WithoutAllReduceReplicasDoNotCommunicate) {
  expect_on_ranks(4, {2, 2}, [](const auto& mesh, CountingWorld& world) -> std::string {
    Model model;
    shard_all(model, mesh);
    world.log.clear();
    model.set_requires_all_reduce(false);
    plain_step(model, mesh->rank(), 0);
    if (world.log.count(CollectiveKind::all_reduce) != 0) return "all-reduced";
    if (world.log.count(CollectiveKind::reduce_scatter) != 3) return "not reduced";
    if (model.parameters()[0].grad().defined()) return ".grad before the all-reduce";
    model.set_requires_all_reduce(true);
    plain_step(model, mesh->rank(), 0);
    return world.log.count(CollectiveKind::all_reduce) == 3 ? "" : "not all-reduced";
  });
}

TEST(FullyShardGradients, AModuleThatRunsSeveralTimesInOneForwardIsReducedOnce) {
  const auto twice = [](Model& model) { model->repeats = 2; };
  expect_weights_of_one_rank(plain_step, {}, twice);
  expect_on_ranks(2, {2}, [&](const auto& mesh, CountingWorld& world) -> std::string {
    Model model;
    shard_all(model, mesh);
    twice(model);
    world.log.clear();
    plain_step(model, mesh->rank(), 0);
    return world.log.count(CollectiveKind::reduce_scatter) == 3 ? "" : "reduced more than once";
  });
}

TEST(FullyShardGradients, TwoForwardsMayPrecedeABackward) {
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    const at::Tensor one = model(rows_of(rank, 2 * step)).sum();
    const at::Tensor other = model(rows_of(rank, 2 * step + 1)).sum();
    (one + other).backward();
  });
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    const at::Tensor one = model(rows_of(rank, 2 * step)).sum();
    const at::Tensor other = model(rows_of(rank, 2 * step + 1)).sum();
    one.backward();
    other.backward();
  });
}

TEST(FullyShardGradients, ABackwardMayRunAgainOnAKeptGraph) {
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    const at::Tensor loss = model(rows_of(rank, step)).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST(FullyShardGradients, InputsThatRequireGradGetGradients) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Model plain;
    at::Tensor x = rows_of(mesh->rank(), 0).requires_grad_();
    plain(x).sum().backward();
    Model model;
    shard_all(model, mesh);
    at::Tensor same = rows_of(mesh->rank(), 0).requires_grad_();
    model(same).sum().backward();
    return at::equal(x.grad(), same.grad()) ? "" : "different gradient";
  });
}

TEST(FullyShardGradients, FrozenParametersAreNeitherReducedNorUpdated) {
  const auto freeze = [](Model& model) {
    model->first->weight.set_requires_grad(false);
    model->first->bias.set_requires_grad(false);
    model->scale.set_requires_grad(false);
  };
  // Before and after fully_shard.
  for (const bool later : {false, true}) {
    const auto expected = one_rank(2, 3, [&](Model& model, int rank, int step) {
      freeze(model);
      plain_step(model, rank, step);
    });
    expect_on_ranks(
        2, {2},
        [&](const auto& mesh, CountingWorld& world) -> std::string {
          Model model;
          if (!later) freeze(model);
          shard_all(model, mesh);
          model.set_reduce_op(ReduceOp::sum, true);
          if (later) freeze(model);
          for (int step = 0; step < 3; ++step) {
            world.log.clear();
            plain_step(model, mesh->rank(), step);
            if (world.log.count(CollectiveKind::reduce_scatter) != 2) return "a frozen unit was reduced";
            snap_update(model.parameters());
            model.zero_grad();
          }
          return difference(values_of(model), expected);
        },
        later ? "frozen later" : "frozen before");
  }
}

TEST(FullyShardGradients, FrozenParametersBesideTrainedOnesAreNotSent) {
  for (const auto& degrees : std::vector<std::vector<int64_t>>{{2}, {2, 2}, {2, 1}}) {
    expect_on_ranks(static_cast<int>(ranks_of(degrees)), degrees,
                    [](const auto& mesh, CountingWorld& world) -> std::string {
                      Model model;
                      shard_all(model, mesh);
                      const auto bytes_of_a_step = [&] {
                        world.log.clear();
                        plain_step(model, mesh->rank(), 0);
                        uint64_t bytes = 0;
                        for (const CollectiveCall& call : world.log.calls()) {
                          const bool reduces = call.kind == CollectiveKind::reduce_scatter ||
                                               call.kind == CollectiveKind::all_reduce;
                          if (reduces) bytes += call.bytes;
                        }
                        return bytes;
                      };
                      const uint64_t all = bytes_of_a_step();
                      model->first->weight.set_requires_grad(false);
                      const uint64_t without = bytes_of_a_step();
                      const auto weight = static_cast<uint64_t>(model->first->weight.numel()) * 4;
                      if (without + weight / 2 > all) return format("{} bytes, before {}", without, all);
                      model->first->weight.set_requires_grad(true);
                      return bytes_of_a_step() == all ? "" : "different bytes after unfreezing";
                    });
  }
}

TEST(FullyShardGradients, AParameterMayBeFrozenAndUnfrozenDuringTraining) {
  for (const PartitionKind partition :
       {PartitionKind::flat, PartitionKind::by_tensor, PartitionKind::by_dim}) {
    expect_weights_of_one_rank(
        [](Model& model, int rank, int step) {
          model->second->weight.set_requires_grad(step != 1);
          plain_step(model, rank, step);
        },
        {.partition = {partition, 0}});
  }
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    model->second->weight.set_requires_grad(step != 1);
    model->second->bias.set_requires_grad(step != 1);
    plain_step(model, rank, step);
  });
  expect_weights_of_one_rank(
      [](Model& model, int rank, int step) {
        model->first->weight.set_requires_grad(step > 0);
        model->first->bias.set_requires_grad(step > 0);
        plain_step(model, rank, step);
      },
      {}, [](Model& model) { model->first->weight.set_requires_grad(false); });
}

TEST(FullyShardGradients, AParameterThatOneRankDoesNotUseDoesNotBlockTheOthers) {
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    model->use_unused = rank == 1;
    plain_step(model, rank, step);
  });
}

/// Two units inside another; some ranks skip one of them in backward.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    register_module("left", left);
    register_module("right", right);
  }
  at::Tensor forward(const at::Tensor& x, bool both) {
    const at::Tensor a = left(x);
    const at::Tensor b = right(x);
    return both ? a + b : a + b.detach();
  }
  Sharded<LayerImpl> left{5, 3, 1};
  Sharded<LayerImpl> right{5, 3, 2};
};

TEST(FullyShardGradients, ABranchSkippedByARankIsReducedInTheSameOrder) {
  for (const int alone : {0, 1}) {
    Sharded<BranchesImpl> plain;
    for (int rank = 0; rank < 2; ++rank) plain(rows_of(rank, 0), rank == alone).sum().backward();
    expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
      Sharded<BranchesImpl> model;
      fully_shard(model->left, mesh);
      fully_shard(model->right, mesh);
      fully_shard(model, mesh);
      model.set_reduce_op(ReduceOp::sum, true);
      model(rows_of(mesh->rank(), 0), mesh->rank() == alone).sum().backward();
      for (const FsdpParamRef& parameter : sharded_parameters(*model.module())) {
        const at::Tensor whole = parameter.group->store().whole(parameter.group->gradient());
        const at::Tensor expected = plain->named_parameters()[parameter.name].grad();
        if (at::sum(whole).template item<float>() == 0) return "no gradient";
        const auto offset = flat_layout(parameter.group->store().spec()).offsets[parameter.index];
        if (!at::equal(whole.narrow(0, offset, expected.numel()).view(expected.sizes()), expected))
          return parameter.name;
      }
      return "";
    });
  }
}

TEST(FullyShardGradients, AverageDividesByTheRanksAndTheFactorMultiplies) {
  for (const auto& degrees : std::vector<std::vector<int64_t>>{{4}, {2, 2}}) {
    expect_on_ranks(4, degrees, [](const auto& mesh, auto&) -> std::string {
      const auto gradient = [&](const std::function<void(Model&)>& prepare) {
        Model model;
        shard_all(model, mesh);
        prepare(model);
        plain_step(model, mesh->rank(), 0);
        std::vector<at::Tensor> all;
        for (const at::Tensor& parameter : model.parameters()) all.push_back(parameter.grad().reshape({-1}));
        return at::cat(all);
      };
      const at::Tensor sum = gradient([](Model& model) { model.set_reduce_op(ReduceOp::sum, true); });
      if (!at::equal(gradient([](Model&) {}) * 4, sum)) return "the average is not a quarter";
      const at::Tensor scaled = gradient([](Model& model) {
        model.set_reduce_op(ReduceOp::sum, true);
        model.set_gradient_scaling_factor(0.5, true);
      });
      if (!at::equal(scaled * 2, sum)) return "not scaled";
      const at::Tensor reset = gradient([](Model& model) {
        model.set_reduce_op(ReduceOp::sum, true);
        model.set_gradient_scaling_factor(0.5, true);
        model.set_gradient_scaling_factor(std::nullopt, true);
      });
      if (!at::equal(reset, sum)) return "not reset";
      Model model;
      shard_all(model, mesh);
      model.set_reduce_op(ReduceOp::sum);  // of the root only
      if (model->first.unit()->behavior.reduce_op != ReduceOp::avg)
        return "the operation reached an inner unit";
      for (const double wrong : {INFINITY, NAN}) {
        try {
          model.set_gradient_scaling_factor(wrong);
          return "accepted";
        } catch (const UsageError&) {
          continue;
        }
      }
      return "";
    });
  }
}

TEST(FullyShardGradients, ReductionsMayContinueAfterABackwardThatIsNotTheLast) {
  const auto expected = one_rank(2, 3, plain_step);
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh);
    model.set_reduce_op(ReduceOp::sum, true);
    model.set_is_last_backward(false);
    for (int step = 0; step < 3; ++step) {
      plain_step(model, mesh->rank(), step);
      model.wait_for_reductions();
      snap_update(model.parameters());
      model.zero_grad();
    }
    return difference(values_of(model), expected);
  });
}

TEST(FullyShardGradients, TiedParametersInsideAUnitAreStoredOnce) {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      a = register_parameter("a", integers({5, 5}, 1));
      b = register_parameter("b", a);
    }
    at::Tensor forward(const at::Tensor& x) { return at::matmul(at::matmul(x, a), b); }
    at::Tensor a;
    at::Tensor b;
  };
  Sharded<TiedImpl> plain;
  for (int rank = 0; rank < 2; ++rank) plain(rows_of(rank, 0)).sum().backward();
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
    Sharded<TiedImpl> model;
    fully_shard(model, mesh);
    model.set_reduce_op(ReduceOp::sum);
    const auto parameters = sharded_parameters(*model.module());
    if (parameters.size() != 1 || parameters[0].aliases != std::vector<std::string>{"b"})
      return "not stored once";
    model(rows_of(mesh->rank(), 0)).sum().backward();
    const at::Tensor whole = parameters[0].group->store().whole(parameters[0].group->gradient());
    return at::equal(whole.narrow(0, 0, 25).view({5, 5}), plain->a.grad()) ? "" : "different gradient";
  });
}

/// Two layers that share a weight.
struct TwoEndsImpl : torch::nn::Module {
  TwoEndsImpl() {
    register_module("first", first);
    register_module("last", last);
    last->weight = last->register_parameter("tied", first->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return last(first(x)); }
  Sharded<LayerImpl> first{5, 5, 1};
  Sharded<LayerImpl> last{5, 5, 3};
};

TEST(FullyShardGradients, TiesAcrossUnitsMustBeDeclared) {
  Sharded<TwoEndsImpl> plain;
  for (int rank = 0; rank < 2; ++rank) plain(rows_of(rank, 0)).sum().backward();
  const at::Tensor expected = plain->first->weight.grad();
  expect_on_ranks(2, {2}, [&](const auto& mesh, CountingWorld& world) -> std::string {
    Sharded<TwoEndsImpl> model;
    fully_shard(model->first, mesh, {.name = "first layer"});
    try {
      fully_shard(model->last, mesh, {.name = "last layer"});
      return "an undeclared tie was accepted";
    } catch (const UsageError& refusal) {
      const std::string text = refusal.what();
      if (text.find("tied of unit \"last layer\" already belongs to unit \"first layer\"") ==
          std::string::npos)
        return text;
    }
    fully_shard(model->last, mesh, {.tied_params = {model->last->weight}});
    fully_shard(model, mesh);
    model.set_reduce_op(ReduceOp::sum, true);
    world.log.clear();
    model(rows_of(mesh->rank(), 0)).sum().backward();
    if (world.log.count(CollectiveKind::reduce_scatter) != 2) return "not reduced once per unit";
    for (const FsdpParamRef& parameter : sharded_parameters(*model.module())) {
      if (parameter.name != "first.weight") continue;
      const at::Tensor whole = parameter.group->store().whole(parameter.group->gradient());
      const auto offset = flat_layout(parameter.group->store().spec()).offsets[parameter.index];
      return at::equal(whole.narrow(0, offset, 25).view({5, 5}), expected) ? "" : "different gradient";
    }
    return "not there";
  });
}

TEST(FullyShardGradients, IgnoredParametersAreUnchangedAndReplicatedOnesAreWhole) {
  for (const auto& degrees : std::vector<std::vector<int64_t>>{{2}, {4}, {2, 2}}) {
    const int ranks = ranks_of(degrees);
    const auto expected = one_rank(ranks, 3, plain_step);
    expect_on_ranks(ranks, degrees, [&](const auto& mesh, CountingWorld& world) -> std::string {
      Model model;
      fully_shard(model->first, mesh, {.replicate_params = {model->first->bias}});
      fully_shard(model->second, mesh);
      fully_shard(model, mesh, {.ignored_params = {model->unused}, .replicate_params = {model->scale}});
      model.set_reduce_op(ReduceOp::sum, true);
      if (model->unused.grad().defined() || !at::equal(model->unused.detach(), integers({17, 2}, 6)))
        return "ignored was touched";
      for (int step = 0; step < 3; ++step) {
        plain_step(model, mesh->rank(), step);
        for (const auto& [name, local] : model.named_parameters()) {
          if (name == "scale" && local.numel() != 3) return "scale was sharded";
          if (name == "unused" && !local.is_same(model->unused)) return "unused was sharded";
        }
        snap_update(model.parameters());
        model.zero_grad();
      }
      auto values = values_of(model);
      return difference(values, expected);
    });
  }
}

TEST(FullyShardGradients, AnIgnoredParameterHasItsOwnGradientOnEachRank) {
  expect_on_ranks(2, {2}, [](const auto& mesh, CountingWorld& world) -> std::string {
    Model plain;
    plain->use_unused = true;
    plain_step(plain, mesh->rank(), 0);
    Model model;
    model->use_unused = true;
    fully_shard(model, mesh, {.ignored_params = {model->unused}});
    plain_step(model, mesh->rank(), 0);
    if (!at::equal(model->unused.grad(), plain->unused.grad())) return "different gradient";
    model.zero_grad();
    return model->unused.grad().defined() ? "not zeroed" : "";
  });
}

TEST(FullyShardGradients, TheStepAfterAnExceptionIsCorrect) {
  const auto expected = one_rank(2, 3, plain_step);
  for (const std::string where : {"forward", "backward"}) {
    for (const auto& degrees : std::vector<std::vector<int64_t>>{{2}, {2, 1}}) {
      expect_on_ranks(
          2, degrees,
          [&](const auto& mesh, auto&) -> std::string {
            Model model;
            shard_all(model, mesh);
            model.set_reduce_op(ReduceOp::sum, true);
            for (int step = 0; step < 3; ++step) {
              try {
                if (where == "forward") {
                  model->second->before = [] { throw std::runtime_error("planted"); };
                  plain_step(model, mesh->rank(), step);
                } else {
                  at::Tensor hidden = model->first(rows_of(mesh->rank(), step + 5));
                  hidden.register_hook(
                      [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("planted"); });
                  model->second(hidden).sum().backward();
                }
                return "no exception";
              } catch (const std::runtime_error& failure) {
                if (std::string(failure.what()).find("planted") == std::string::npos) return failure.what();
              }
              model->second->before = nullptr;
              for (const auto& entry : units_in(*model.module())) {
                if (where == "forward" && entry.unit->unsharded()) return "left gathered";
              }
              if (where == "backward") {
                try {
                  plain_step(model, mesh->rank(), step);
                  return "a forward after a failed backward was accepted";
                } catch (const Error& refusal) {
                  if (std::string(refusal.what()).find("zero_grad()") == std::string::npos)
                    return refusal.what();
                }
              }
              model.zero_grad();
              for (const auto& entry : units_in(*model.module())) {
                if (entry.unit->unsharded()) return "left gathered";
              }
              plain_step(model, mesh->rank(), step);
              snap_update(model.parameters());
              model.zero_grad();
            }
            return difference(values_of(model), expected);
          },
          where);
    }
  }
}

TEST(FullyShardGradients, CollectivesOutOfOrderAreDetectedAndBothCallsAreNamed) {
  const auto results = run_threads(2, [](World& world) {
    const auto mesh = std::make_shared<ShardMesh>(world);
    Sharded<LayerImpl> small(5, 3, 1);
    Sharded<LayerImpl> large(50, 70, 1);
    fully_shard(small, mesh);
    fully_shard(large, mesh);
    (world.rank() == 0 ? small : large).unshard();
    return std::string("no exception");
  });
  for (const std::string& result : results) {
    EXPECT_NE(result.find("PeerError"), std::string::npos) << result;
    EXPECT_NE(result.find("all_gather of 4096 bytes"), std::string::npos) << result;
    EXPECT_NE(result.find("all_gather of 8192 bytes"), std::string::npos) << result;
  }
}

TEST(FullyShardGradients, SwappedUnitsOfEqualSizeAreDetectedInEveryCollective) {
  const auto run = [](const std::vector<int64_t>& degrees, bool in_backward) {
    return run_threads(ranks_of(degrees), [&](World& world) {
      const auto mesh = std::make_shared<ShardMesh>(world, degrees);
      Sharded<LayerImpl> one(5, 3, 1);
      Sharded<LayerImpl> other(5, 3, 2);
      fully_shard(one, mesh, {.reshard_after_forward = false});
      fully_shard(other, mesh, {.reshard_after_forward = false});
      if (in_backward) {
        one.unshard();
        other.unshard();
      }
      const bool first = world.rank() == 0;
      const at::Tensor out = (first ? one : other)(rows_of(0, 0));
      out.sum().backward();
      return std::string("no exception");
    });
  };
  const auto expect_detected = [](const std::vector<std::string>& results, const std::string& call) {
    for (const std::string& result : results) {
      EXPECT_CONTAINS(result, "PeerError");
      for (const char* unit : {"0", "1"}) EXPECT_CONTAINS(result, format("{} for unit {}", call, unit));
    }
  };
  expect_detected(run({2}, /*in_backward=*/false), "all_gather of 4096 bytes");
  expect_detected(run({2}, /*in_backward=*/true), "reduce_scatter of 8192 bytes fp32");
  expect_detected(run({2, 1}, /*in_backward=*/true), "all_reduce of 4096 bytes fp32");
}

TEST(FullyShardGradients, AForwardInsideABackwardRecomputes) {
  // Activation checkpointing: backward runs the layer again and then its backward.
  struct Recompute : torch::autograd::Function<Recompute> {
    static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, int64_t layer) {
      const at::NoGradGuard no_grad;
      ctx->save_for_backward({x});
      ctx->saved_data["layer"] = layer;
      return (*reinterpret_cast<Sharded<LayerImpl>*>(layer))(x);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list gradients) {
      const at::AutoGradMode with_graph(true);
      const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
      const auto layer = ctx->saved_data["layer"].toInt();
      (*reinterpret_cast<Sharded<LayerImpl>*>(layer))(x).backward(gradients[0]);
      return {x.grad(), at::Tensor()};
    }
  };
  expect_weights_of_one_rank([](Model& model, int rank, int step) {
    const at::Tensor x = rows_of(rank, step).requires_grad_();
    const at::Tensor hidden = Recompute::apply(x, reinterpret_cast<int64_t>(&model->first));
    model->second(hidden).sum().backward();
  });
}

}  // namespace
}  // namespace stepforge::testing
