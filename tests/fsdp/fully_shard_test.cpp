// SPDX-License-Identifier: Apache-2.0
// Sharded modules compute what one rank computes, whatever the options, and issue the expected collectives.
#include "stepforge/fsdp/fully_shard.h"

#include <gtest/gtest.h>

#include "tests/fsdp/sharded_models.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

struct Layout {
  int ranks;
  std::vector<int64_t> degrees;
};

std::vector<Layout> layouts() {
  return {{1, {1}}, {2, {2}}, {2, {2, 1}}, {3, {3}}, {4, {2, 2}}, {4, {-1}}, {4, {2, -1}}, {8, {8}}};
}

/// Two layers, with a hook on the gradient between them.
struct BlocksImpl : torch::nn::Module {
  BlocksImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = first(x);
    if (between) hidden.register_hook(between);
    return second(hidden);
  }
  Sharded<LayerImpl> first{5, 7, 1};
  Sharded<LayerImpl> second{7, 3, 2};
  std::function<void(at::Tensor)> between;
};

/// Trains a sharded model, with `prepare` called after fully_shard, and compares its weights.
std::string train_and_compare(const std::shared_ptr<ShardMesh>& mesh, const FullyShardOptions& options,
                              const std::function<void(Model&)>& prepare,
                              const std::map<std::string, at::Tensor>& expected) {
  Model model;
  shard_all(model, mesh, options);
  model.set_reduce_op(ReduceOp::sum, /*recurse=*/true);
  if (prepare) prepare(model);
  for (int step = 0; step < 3; ++step) {
    plain_step(model, mesh->rank(), step);
    snap_update(model.parameters());
    model.zero_grad();
  }
  return difference(values_of(model), expected);
}

TEST(FullyShard, EveryMeshPartitionAndPolicyGivesTheWeightsOfOneRank) {
  using Kind = PartitionKind;
  for (const Layout& layout : layouts()) {
    const auto expected = one_rank(layout.ranks, 3, plain_step);
    for (const Partition& partition : {Partition{Kind::flat}, Partition{Kind::by_tensor},
                                       Partition{Kind::by_dim, 0}, Partition{Kind::by_dim, -1}}) {
      expect_on_ranks(
          layout.ranks, layout.degrees,
          [&](const auto& mesh, auto&) {
            return train_and_compare(mesh, {.partition = partition}, {}, expected);
          },
          partition_text(partition));
    }
    const std::map<std::string, std::function<void(Model&)>> policies = {
        {"kept after forward", [](Model& model) { model.set_reshard_after_forward(false); }},
        {"kept after backward", [](Model& model) { model.set_reshard_after_backward(false); }},
        {"kept always",
         [](Model& model) {
           model.set_reshard_after_forward(false);
           model.set_reshard_after_backward(false);
         }},
        {"prefetch", [](Model& model) {
           model.set_modules_to_forward_prefetch({model->first, model->second});
           model->first.set_modules_to_forward_prefetch({model->second});
           model->second.set_modules_to_backward_prefetch({model->first});
         }}};
    for (const auto& [name, prepare] : policies) {
      expect_on_ranks(
          layout.ranks, layout.degrees,
          [&](const auto& mesh, auto&) { return train_and_compare(mesh, {}, prepare, expected); }, name);
    }
  }
}

TEST(FullyShard, WithoutFullyShardAHolderIsAnOrdinaryOne) {
  Model model;
  EXPECT_FALSE(model.is_sharded());
  EXPECT_EQ(model.parameters().size(), 8U);
  EXPECT_TRUE(at::equal(model(rows_of(0, 0)), model->forward(rows_of(0, 0))));
  EXPECT_THROW(model.reshard(), UsageError);
}

TEST(FullyShard, AStepIssuesTheExpectedCollectivesAndNoneOnOneRank) {
  for (const Layout& layout : layouts()) {
    expect_on_ranks(layout.ranks, layout.degrees, [](const auto& mesh, CountingWorld& world) -> std::string {
      Model model;
      shard_all(model, mesh);
      const int64_t sharded = mesh->shards() > 1 ? 1 : 0;
      const int64_t replicated = mesh->replicas() > 1 ? 1 : 0;
      for (int step = 0; step < 2; ++step) {
        world.log.clear();
        plain_step(model, mesh->rank(), step);
        // Three units, gathered for forward and for backward.
        if (world.log.count(CollectiveKind::all_gather) != 6 * sharded) return "gathers";
        if (world.log.count(CollectiveKind::reduce_scatter) != 3 * sharded) return "reductions";
        if (world.log.count(CollectiveKind::all_reduce) != 3 * replicated) return "reductions over replicas";
      }
      model.set_reshard_after_forward(false);
      world.log.clear();
      plain_step(model, mesh->rank(), 2);
      if (world.log.count(CollectiveKind::all_gather) != 3 * sharded)
        return "gathers of a step that keeps values";
      world.log.clear();
      {
        const at::NoGradGuard no_grad;
        model.set_reshard_after_forward(true);
        model(rows_of(0, 0));
      }
      if (world.log.count(CollectiveKind::all_gather) != 3 * sharded) return "gathers of an evaluation";
      return world.log.count(CollectiveKind::reduce_scatter) == 0 ? "" : "reduction of an evaluation";
    });
  }
}

TEST(FullyShard, UsingAParameterWithoutItsHolderThrowsAndNamesTheUnit) {
  for (const int ranks : {1, 2}) {
    expect_on_ranks(ranks, {ranks}, [](const auto& mesh, auto&) -> std::string {
      Model model;
      fully_shard(model->first, mesh, {.name = "the first layer"});
      fully_shard(model, mesh);
      for (int round = 0; round < 2; ++round) {
        try {
          model->first->forward(rows_of(0, 0));
          return "no exception";
        } catch (const c10::Error& error) {
          const std::string text = error.what();
          if (text.find("\"the first layer\" is used but not gathered") == std::string::npos) return text;
        }
        plain_step(model, 0, 0);
      }
      return "";
    });
  }
}

TEST(FullyShard, UnshardAndReshardAreIdempotent) {
  expect_on_ranks(2, {2}, [](const auto& mesh, CountingWorld& world) -> std::string {
    Model model;
    const auto before = values_of(model);
    shard_all(model, mesh);
    world.log.clear();
    model->first.unshard();
    model->first.unshard();
    if (world.log.count(CollectiveKind::all_gather) != 1) return "gathered twice";
    if (!at::equal(model->first->weight.detach(), before.at("first.weight"))) return "different values";
    const at::Tensor by_hand = model->first->forward(rows_of(0, 0));
    model->first.reshard();
    model->first.reshard();
    if (model->first.unit()->unsharded()) return "still gathered";
    UnshardHandle handle = model->first.unshard(/*async=*/true);
    handle.wait();
    handle.wait();
    if (world.log.count(CollectiveKind::all_gather) != 2) return "gathered more than once";
    return at::equal(model->first(rows_of(0, 0)), by_hand) ? "" : "different results";
  });
}

TEST(FullyShard, ACallWaitsForAnAsynchronousUnshard) {
  expect_on_ranks(2, {2}, [](const auto& mesh, CountingWorld& world) -> std::string {
    Model model;
    const at::Tensor expected = model(rows_of(0, 0)).detach();
    shard_all(model, mesh);
    world.log.clear();
    model->second.unshard(/*async=*/true);
    model.unshard(/*async=*/true);
    const at::Tensor found = model(rows_of(0, 0)).detach();
    if (world.log.count(CollectiveKind::all_gather) != 3) return "gathered again";
    return at::equal(found, expected) ? "" : "different results";
  });
}

TEST(FullyShard, PrefetchListsStartGathersEarly) {
  expect_on_ranks(2, {2}, [](const auto& mesh, CountingWorld& world) -> std::string {
    Model model;
    shard_all(model, mesh);
    model->first.set_modules_to_forward_prefetch({model->second});
    // Waits for a gather under way, but starts none.
    const auto was_started = [&] {
      model->second.unit()->wait_for_gather();
      return world.log.count(CollectiveKind::all_gather) == 2;
    };
    world.log.clear();
    model->first(rows_of(0, 0));
    if (!was_started()) return "the list was not followed";
    model->second.unshard();
    if (world.log.count(CollectiveKind::all_gather) != 2) return "gathered twice";
    // It is under way when the first module's forward begins.
    model->second.reshard();
    bool is_ahead = false;
    model->first->before = [&] { is_ahead = was_started(); };
    world.log.clear();
    model->first(rows_of(0, 0));
    return is_ahead ? "" : "started after the forward";
  });
}

/// Runs `body` and, if `set`, sets the mark even if `body` throws, so that nothing waits for it forever.
void run_then_set(const Marks& marks, const std::string& mark, bool set, const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    if (set) marks.set(mark);
    throw;
  }
  if (set) marks.set(mark);
}

TEST(FullyShard, AnAsynchronousUnshardDoesNotWaitForOtherRanks) {
  // Rank 1 joins the gather only after rank 0's unshard() has returned.
  const Marks marks;
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh);
    if (mesh->rank() == 1) marks.wait_for("returned");
    run_then_set(marks, "returned", mesh->rank() == 0, [&] { model.unshard(/*async=*/true); });
    model.unshard();
    return at::equal(model->scale.detach(), integers({3}, 5)) ? "" : "different values";
  });
}

TEST(FullyShard, ReductionsRunConcurrentlyWithTheirRank) {
  // Rank 1 begins its backward only after rank 0's has ended, with its reductions still under way.
  const Marks marks;
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
    Sharded<LayerImpl> model(5, 3, 1);
    fully_shard(model, mesh, {.reshard_after_forward = false});
    model.set_is_last_backward(false);
    const at::Tensor loss = model(rows_of(mesh->rank(), 0)).sum();
    if (mesh->rank() == 1) marks.wait_for("ended");
    run_then_set(marks, "ended", mesh->rank() == 0, [&] { loss.backward(); });
    model.wait_for_reductions();
    for (const at::Tensor& local : model.parameters()) {
      if (!local.grad().defined()) return "no gradient";
    }
    return "";
  });
}

TEST(FullyShard, BackwardPrefetchesTheNextUnitUnlessAListIsSet) {
  // Counts the gathers when the gradient of the second unit's input is computed.
  for (const bool ahead : {true, false}) {
    expect_on_ranks(2, {2}, [&](const auto& mesh, CountingWorld& world) -> std::string {
      Sharded<BlocksImpl> model;
      fully_shard(model->first, mesh);
      fully_shard(model->second, mesh);
      fully_shard(model, mesh);
      if (!ahead) model->second.set_modules_to_backward_prefetch({});
      int64_t gathers = -1;
      model->between = [&](at::Tensor) {
        model->first.unit()->param_groups()[0]->release();  // which waits for a gather under way
        gathers = world.log.count(CollectiveKind::all_gather);
      };
      const at::Tensor loss = model(rows_of(mesh->rank(), 0)).sum();
      world.log.clear();
      loss.backward();
      return gathers == (ahead ? 2 : 1) ? "" : format("{} gathers", gathers);
    });
  }
}

TEST(FullyShard, APrefetchBeforeAnUpdateIsNotUsedAfterIt) {
  const auto expected = one_rank(2, 3, plain_step);
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh);
    model.set_reduce_op(ReduceOp::sum, true);
    // The values that the last unit prefetches are first used in the next step.
    model->second.set_modules_to_forward_prefetch({model->first});
    model->first.set_modules_to_backward_prefetch({model->second});
    for (int step = 0; step < 3; ++step) {
      plain_step(model, mesh->rank(), step);
      snap_update(model.parameters());
      model.zero_grad();
    }
    return difference(values_of(model), expected);
  });
}

TEST(FullyShard, CpuOffloadChangesNoNumber) {
  const auto expected = one_rank(2, 3, plain_step);
  expect_on_ranks(2, {2}, [&](const auto& mesh, auto&) {
    return train_and_compare(mesh, {.cpu_offload = {.enabled = true}}, {}, expected);
  });
}

TEST(FullyShard, AModelMayBeDestroyedBeforeItsReductionsAndItsGraph) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    at::Tensor loss;
    {
      Model model;
      shard_all(model, mesh);
      model.set_is_last_backward(false);
      plain_step(model, mesh->rank(), 0);
      loss = model(rows_of(mesh->rank(), 1)).sum();
    }
    loss.backward();
    return "";
  });
}

TEST(FullyShard, GatheredValuesAreNotReusedAfterAnUpdate) {
  for (const bool own_optimizer : {false, true}) {
    expect_on_ranks(2, {2}, [&](const auto& mesh, CountingWorld& world) -> std::string {
      Model model;
      shard_all(model, mesh);
      model.set_reshard_after_forward(false);
      model.set_reshard_after_backward(false);
      plain_step(model, mesh->rank(), 0);
      world.log.clear();
      plain_step(model, mesh->rank(), 0);
      if (world.log.count(CollectiveKind::all_gather) != 0) return "gathered although nothing changed";
      if (own_optimizer) {
        for (const auto& group : model.unit()->param_groups()) group->masters_changed();
        for (const auto& group : model->first.unit()->param_groups()) group->masters_changed();
        for (const auto& group : model->second.unit()->param_groups()) group->masters_changed();
      } else {
        snap_update(model.parameters());
      }
      plain_step(model, mesh->rank(), 0);
      return world.log.count(CollectiveKind::all_gather) == 3 ? "" : "stale values";
    });
  }
}

TEST(FullyShard, MeshesThatDoNotFitAreRefused) {
  expect_on_ranks(2, {2}, [](const auto&, CountingWorld& world) -> std::string {
    for (const std::vector<int64_t>& degrees : std::vector<std::vector<int64_t>>{
             {}, {3}, {1, 1, 1, 2}, {-1, -1}, {2, 2}, {1, 2, 2}, {1, 1, 0}, {0}}) {
      try {
        const ShardMesh mesh(world, degrees, "bad");
        return format("{} dimensions accepted", degrees.size());
      } catch (const UsageError&) {
        continue;
      }
    }
    return "";
  });
}

TEST(FullyShard, InvalidOptionsAndParametersAreRefusedAndNamed) {
  expect_on_ranks(1, {1}, [](const auto& mesh, auto&) -> std::string {
    const auto refusal = [&](const auto& body) { return message_of<UsageError>(body); };
    Model model;
    const at::Tensor unknown = at::ones({2});
    const std::vector<std::pair<FullyShardOptions, std::string>> wrong = {
        {{.ignored_params = {unknown}}, "ignored_params[0]"},
        {{.replicate_params = {model->scale, unknown}}, "replicate_params[1]"},
        {{.tied_params = {unknown}}, "tied_params[0]"},
        {{.mixed_precision = {.param_dtype = at::kInt}}, "Int"},
        {{.mixed_precision = {.reduce_dtype = at::kDouble}}, "Double"}};
    for (const auto& [options, expected] : wrong) {
      const std::string text = refusal([&] { fully_shard(model, mesh, options); });
      if (text.find(expected) == std::string::npos) return text;
    }
    if (model.is_sharded()) return "sharded nevertheless";
    if (refusal([&] { fully_shard(model, nullptr); }).find("needs a mesh") == std::string::npos)
      return "no mesh";
    fully_shard(model, mesh);
    const std::string again = refusal([&] { fully_shard(model, mesh); });
    if (again.find("already sharded") == std::string::npos) return again;
    Sharded<LayerImpl> wide(2, 2, 1);
    wide->weight.set_data(wide->weight.to(at::kDouble));
    const std::string dtype = refusal([&] { fully_shard(wide, mesh); });
    return dtype.find("weight of unit") != std::string::npos ? "" : dtype;
  });
}

}  // namespace
}  // namespace stepforge::testing
