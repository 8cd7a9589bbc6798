// SPDX-License-Identifier: Apache-2.0
// A custom training loop with tensor parallelism: two neighbouring ranks divide each layer, and their slices
// are sharded over the other ranks. See README.md.
#include <cstdio>

#include <stepforge/engines/world.h>
#include <stepforge/fsdp/fully_shard.h>
#include <stepforge/fsdp/model_state.h>
#include <stepforge/fsdp/tensor_sums.h>
#include <stepforge/optim/clip_grad_norm.h>
#include <stepforge/optim/sharded_adamw.h>
#include <torch/nn/modules/linear.h>

using namespace stepforge;

struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t width, const ShardMesh& mesh) : mesh(mesh) {
    const int64_t all = 4 * width;  // hidden units
    const int64_t own = all / mesh.tensor_degree();
    const int64_t first = own * mesh.tensor_rank();
    up = register_parameter("up", at::empty({own, width}, at::kMeta));
    down = register_parameter("down", at::empty({width, own}, at::kMeta));
    sliced = {{up, {first, 0}, {all, width}}, {down, {0, first}, {width, all}}};
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::gelu(at::linear(sum_gradients(x, mesh), up));
    return x + sum_values(at::linear(hidden, down), mesh);
  }
  const ShardMesh& mesh;
  at::Tensor up, down;
  std::vector<TensorSliceOf> sliced;
};

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t width, int layers, const ShardMesh& mesh) : head(width, 1) {
    for (int i = 0; i < layers; ++i)
      this->layers.push_back(register_module("layer" + std::to_string(i), Sharded<LayerImpl>(width, mesh)));
    register_module("head", head);  // whole on all ranks of tensor parallelism
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
  const int64_t tensor = world->size() % 2 == 0 ? 2 : 1;
  const auto mesh = std::make_shared<ShardMesh>(*world, std::vector<int64_t>{1, -1, tensor});
  torch::manual_seed(7);  // the same values on all ranks
  Sharded<ModelImpl> model(32, 3, *mesh);
  FullyShardOptions options;
  options.initialize = [](const std::string&, at::Tensor whole) { whole.normal_(0.0, 0.1); };
  for (auto& layer : model->layers) {
    options.sliced_params = layer->sliced;
    fully_shard(layer, mesh, options);
  }
  fully_shard(model, mesh);
  ShardedAdamW optimizer(model, {.lr = 3e-3});

  for (int step = 1; step <= 60; ++step) {
    const at::Tensor rows = at::randn({64, 32});  // ranks of tensor parallelism take the same share
    const at::Tensor x = rows.chunk(mesh->ranks())[mesh->data_rank()];
    const at::Tensor loss = at::mse_loss(model(x), x.sin().sum(1, /*keepdim=*/true));
    loss.backward();
    const double norm = clip_grad_norm(model, 1.0);
    optimizer.step();
    model.zero_grad();
    if (step % 20 == 0) std::printf("step %d  norm %.4f\n", step, norm);
  }
  const StateDict weights = get_state_dict(model, {.full_state_dict = true, .cpu_offload = true});
  std::printf("rank %d of %d, with 1/%d of each layer, has %zu whole tensors\n", world->rank(), world->size(),
              mesh->tensor_degree(), weights.size());
}
