// SPDX-License-Identifier: Apache-2.0
// A custom training loop: the parameters of each layer are sharded over all ranks. See README.md.
#include <cstdio>

#include <stepforge/engines/world.h>
#include <stepforge/fsdp/fully_shard.h>
#include <stepforge/fsdp/model_state.h>
#include <stepforge/optim/clip_grad_norm.h>
#include <stepforge/optim/sharded_adamw.h>
#include <torch/nn/modules/linear.h>

using namespace stepforge;

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(int64_t width) : up(width, 4 * width), down(4 * width, width) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(x))); }
  torch::nn::Linear up, down;
};

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t width, int layers) : head(width, 1) {
    for (int i = 0; i < layers; ++i)
      this->layers.push_back(register_module("layer" + std::to_string(i), Sharded<LayerImpl>(width)));
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return head(x);
  }
  std::vector<Sharded<LayerImpl>> layers;
  torch::nn::Linear head;
};

int main() {
  const auto world = make_world(discover_ranks(process_environment()), {});
  const auto mesh = std::make_shared<ShardMesh>(*world);
  torch::manual_seed(7);  // the same values on all ranks; each keeps its shard
  Sharded<ModelImpl> model(32, 3);
  for (auto& layer : model->layers) fully_shard(layer, mesh);
  fully_shard(model, mesh);  // the parameters outside the layers
  ShardedAdamW optimizer(model, {.lr = 3e-3});

  for (int step = 1; step <= 60; ++step) {
    const at::Tensor rows = at::randn({64, 32});  // the rows of all ranks; each takes its share
    const at::Tensor x = rows.chunk(world->size())[world->rank()];
    const at::Tensor loss = at::mse_loss(model(x), x.sin().sum(1, /*keepdim=*/true));
    loss.backward();
    const double norm = clip_grad_norm(model, 1.0);
    optimizer.step();
    model.zero_grad();
    if (step % 20 == 0) std::printf("step %d  norm %.4f\n", step, norm);
  }
  const StateDict weights = get_state_dict(model, {.full_state_dict = true, .cpu_offload = true});
  std::printf("rank %d of %d has %zu whole tensors\n", world->rank(), world->size(), weights.size());
}
