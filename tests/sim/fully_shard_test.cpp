// SPDX-License-Identifier: Apache-2.0
// Modules under fully_shard on simulated devices have the weights of one rank on the CPU, whatever the options.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/fsdp/model_state.h"
#include "stepforge/optim/clip_grad_norm.h"
#include "stepforge/optim/sharded_adamw.h"
#include "stepforge/sim/machine.h"
#include "tests/fsdp/sharded_models.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Mesh = std::shared_ptr<ShardMesh>;

class SimFullyShard : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Before the first backward: libtorch's engine then learns which devices there are.
    compute_device("sim", 0);
    sim::Machine::get().set_delays({.seed = 4, .most_microseconds = 15});
  }
  static void TearDownTestSuite() { sim::Machine::get().set_delays({}); }

  /// `body` on ranks with a mesh of `degrees`, each on the device of its number; "cpu": on the CPU.
  static std::vector<std::string> on_ranks(int ranks, const std::vector<int64_t>& degrees,
                                           const std::function<std::string(const Mesh&)>& body,
                                           const std::string& device = "sim") {
    return run_threads(ranks, [&](World& world) -> std::string {
      try {
        return body(
            std::make_shared<ShardMesh>(world, degrees, "fully_shard", compute_device(device, world.rank())));
      } catch (const std::exception& failure) {
        world.abort(failure.what());
        throw;
      }
    });
  }
  static void expect_on_ranks(int ranks, const std::vector<int64_t>& degrees, const std::string& name,
                              const std::function<std::string(const Mesh&)>& body) {
    EXPECT_EQ(on_ranks(ranks, degrees, body), std::vector<std::string>(static_cast<size_t>(ranks))) << name;
  }
};

at::Tensor on_device(const at::Tensor& tensor, const Mesh& mesh) {
  return tensor.to(mesh->device().device);
}

void step_on(Model& model, const Mesh& mesh, int step) {
  model(on_device(rows_of(mesh->rank(), step), mesh)).sum().backward();
}

std::string train_and_compare(const Mesh& mesh, const FullyShardOptions& options,
                              const std::function<void(Model&)>& prepare,
                              const std::map<std::string, at::Tensor>& expected) {
  Model model;
  shard_all(model, mesh, options);
  model.set_reduce_op(ReduceOp::sum, /*recurse=*/true);
  if (prepare) prepare(model);
  for (int step = 0; step < 3; ++step) {
    step_on(model, mesh, step);
    model.wait_for_reductions();
    snap_update(model.parameters());
    model.zero_grad();
  }
  return difference(values_of(model), expected);
}

TEST_F(SimFullyShard, EveryMeshPartitionAndPolicyGivesTheWeightsOfOneRank) {
  struct Layout {
    int ranks;
    std::vector<int64_t> degrees;
  };
  using Kind = PartitionKind;
  const std::map<std::string, std::function<void(Model&)>> policies = {
      {"default", {}},
      {"kept after forward", [](Model& model) { model.set_reshard_after_forward(false); }},
      {"kept always",
       [](Model& model) {
         model.set_reshard_after_forward(false);
         model.set_reshard_after_backward(false);
       }},
      {"prefetch",
       [](Model& model) {
         model.set_modules_to_forward_prefetch({model->first, model->second});
         model->first.set_modules_to_forward_prefetch({model->second});
         model->second.set_modules_to_backward_prefetch({model->first});
       }},
      {"gathers given up",
       [](Model& model) {
         model->first.unshard(/*async=*/true);
         model->first.reshard();
       }},
      {"reductions left running", [](Model& model) { model.set_is_last_backward(false); }}};
  for (const Layout& layout : {Layout{1, {1}}, Layout{2, {2}}, Layout{3, {3}}, Layout{4, {2, 2}}}) {
    const auto expected = one_rank(layout.ranks, 3, plain_step);
    for (const Partition& partition :
         {Partition{Kind::flat}, Partition{Kind::by_tensor}, Partition{Kind::by_dim, 0}}) {
      for (const bool offload : {false, true}) {
        for (const auto& [name, prepare] : policies) {
          expect_on_ranks(
              layout.ranks, layout.degrees, format("{}, {}, {}", name, partition_text(partition), offload),
              [&](const Mesh& mesh) {
                return train_and_compare(mesh, {.partition = partition, .cpu_offload = {.enabled = offload}},
                                         prepare, expected);
              });
        }
      }
    }
  }
}

TEST_F(SimFullyShard, GradientsAccumulateBeforeAndAfterReductions) {
  constexpr int kRanks = 4;
  const auto expected = one_rank(kRanks, 2, [](Model& model, int rank, int step) {
    for (int micro = 0; micro < 3; ++micro) plain_step(model, rank, 3 * step + micro);
  });
  for (const bool offload : {false, true}) {
    for (const bool sync : {false, true}) {
      for (const bool all_reduce : {false, true}) {
        expect_on_ranks(kRanks, {2, 2}, format("{} {} {}", offload, sync, all_reduce), [&](const Mesh& mesh) {
          Model model;
          shard_all(model, mesh, {.cpu_offload = {.enabled = offload}});
          model.set_reduce_op(ReduceOp::sum, /*recurse=*/true);
          for (int step = 0; step < 2; ++step) {
            for (int micro = 0; micro < 3; ++micro) {
              model.set_requires_gradient_sync(sync || micro == 2);
              model.set_requires_all_reduce(all_reduce || micro == 2);
              step_on(model, mesh, 3 * step + micro);
            }
            model.wait_for_reductions();
            snap_update(model.parameters());
            model.zero_grad();
          }
          return difference(values_of(model), expected);
        });
      }
    }
  }
}

/// The losses, norms and weights of a loop with the optimizer and clipping.
std::string train_with_adamw(const Mesh& mesh, bool offload) {
  Model model;
  shard_all(model, mesh,
            {.mixed_precision = {.param_dtype = at::kBFloat16, .output_dtype = at::kFloat},
             .cpu_offload = {.enabled = offload}});
  ShardedAdamW optimizer(model, {.lr = 0.01});
  std::string text;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor loss = model(on_device(rows_of(mesh->rank(), step), mesh)).square().mean();
    loss.backward();
    text += format("{} {} ", loss.item<float>(), clip_grad_norm(model, 0.5));
    optimizer.step();
    model.zero_grad();
  }
  for (const auto& [name, value] : values_of(model))
    text += format("{} {} ", name, value.sum().item<float>());
  return text;
}

TEST_F(SimFullyShard, MixedPrecisionClippingAndAdamWAreThoseOfTheCpu) {
  const ChargeMemory none(nullptr);
  for (const std::vector<int64_t>& degrees : {std::vector<int64_t>{2}, std::vector<int64_t>{2, 1}}) {
    const auto expected =
        on_ranks(2, degrees, [](const Mesh& mesh) { return train_with_adamw(mesh, false); }, "cpu");
    EXPECT_FALSE(expected[0].empty());
    for (const bool offload : {false, true})
      EXPECT_EQ(on_ranks(2, degrees, [&](const Mesh& mesh) { return train_with_adamw(mesh, offload); }),
                expected);
  }
}

TEST_F(SimFullyShard, StateIsSavedAndLoadedOnDevices) {
  for (const bool full : {false, true}) {
    for (const bool offload : {false, true}) {
      expect_on_ranks(2, {2}, format("{} {}", full, offload), [&](const Mesh& mesh) {
        Model trained;
        shard_all(trained, mesh, {.cpu_offload = {.enabled = offload}});
        trained.set_reduce_op(ReduceOp::sum, /*recurse=*/true);
        step_on(trained, mesh, 0);
        snap_update(trained.parameters());
        trained.zero_grad();
        const StateDict state = get_state_dict(trained, {.full_state_dict = full, .cpu_offload = true});
        Model loaded;
        shard_all(loaded, mesh);
        load_state_dict(loaded, mesh->rank() == 0 || !full ? state : StateDict{},
                        {.broadcast_from_rank0 = full});
        return difference(values_of(loaded), values_of(trained));
      });
    }
  }
}

/// A layer with a buffer; its parameter may be on the meta device.
struct ShiftedImpl : torch::nn::Module {
  explicit ShiftedImpl(c10::Device device) {
    weight = register_parameter("weight", at::ones({3, 4}, at::device(device)));
    shift = register_buffer("shift", at::ones({3}, at::device(device)));
  }
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, weight.t()) + shift; }
  at::Tensor weight;
  at::Tensor shift;
};

TEST_F(SimFullyShard, ModulesOfAnyDeviceAreMovedToThatOfTheMesh) {
  const std::vector<int64_t> shape{2, 4};
  const at::Tensor x = integers(shape, 1);
  ShiftedImpl plain(at::kCPU);
  const at::Tensor expected = plain.forward(x);
  for (const bool meta : {false, true}) {
    expect_on_ranks(2, {2}, meta ? "meta" : "cpu", [&](const Mesh& mesh) -> std::string {
      Sharded<ShiftedImpl> module(meta ? c10::Device(at::kMeta) : c10::Device(at::kCPU));
      FullyShardOptions options;
      if (meta) options.initialize = [](const std::string&, at::Tensor value) { value.fill_(1.0); };
      fully_shard(module, mesh, options);
      const at::Tensor found = module(on_device(x, mesh));
      if (found.device() != mesh->device().device) return "computed on " + found.device().str();
      if (module->shift.device() != found.device())
        return "a buffer stayed on " + module->shift.device().str();
      return at::equal(found.cpu(), expected) ? "" : "other values";
    });
  }
}

TEST_F(SimFullyShard, AParameterOfAnotherDeviceIsRefused) {
  const auto results = on_ranks(2, {2}, [](const Mesh& mesh) -> std::string {
    const c10::Device other(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(mesh->rank() + 4));
    Sharded<ShiftedImpl> module(other);
    return message_of<UsageError>([&] { fully_shard(module, mesh); });
  });
  EXPECT_CONTAINS(results[0], "weight", "the mesh computes on");
}

}  // namespace
}  // namespace stepforge::testing
