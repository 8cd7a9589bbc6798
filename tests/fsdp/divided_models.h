// SPDX-License-Identifier: Apache-2.0
// A model whose matrices are divided over the ranks of tensor parallelism, with integer values: the results
// of every mesh have the bits of one rank's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#include "stepforge/fsdp/model_state.h"
#include "stepforge/fsdp/tensor_sums.h"
#include "stepforge/modelspec/tensor_parallel.h"
#include "stepforge/storage/tensor_parts.h"
#include "tests/fsdp/sharded_models.h"

namespace stepforge::testing {

constexpr int64_t kTokens = 7;
constexpr int64_t kWidth = 4;
constexpr int64_t kHidden = 5;

/// This rank's part of `count` tokens or hidden units, of which the ranks need not have equal numbers.
inline ShardRange own_part(int64_t count, const ShardMesh& mesh) {
  return TensorParallel{mesh.tensor_rank(), mesh.tensor_degree()}.part_of(count);
}

/// The initial values of a whole tensor.
inline at::Tensor initial_value(const std::string& name, at::IntArrayRef shape) {
  int64_t seed = 0;
  for (const char letter : name) seed += letter;
  return integers(shape, seed);
}

/// A module that knows which of its parameters are slices.
struct DividedModule : torch::nn::Module {
  explicit DividedModule(const ShardMesh& mesh, at::Device device = at::kCPU) : mesh(mesh), device(device) {}

  /// Registers the slice `part` along `dimension` of a tensor of `shape`.
  at::Tensor register_slice(const std::string& name, const std::vector<int64_t>& shape, size_t dimension,
                            const ShardRange& part) {
    TensorSlice place = whole_slice(shape);
    place.offsets[dimension] = part.begin;
    place.sizes[dimension] = part.size();
    const at::Tensor value = part_of(initial_value(name, shape), place).clone();
    at::Tensor parameter = register_parameter(name, value.to(device));
    sliced.push_back({parameter, place.offsets, shape});
    return parameter;
  }
  at::Tensor register_whole(const std::string& name, const std::vector<int64_t>& shape) {
    return register_parameter(name, initial_value(name, shape).to(device));
  }

  const ShardMesh& mesh;
  at::Device device;  ///< of the parameters
  std::vector<TensorSliceOf> sliced;
};

/// An embedding whose tokens are divided.
struct TableImpl : DividedModule {
  explicit TableImpl(const ShardMesh& mesh) : DividedModule(mesh), part(own_part(kTokens, mesh)) {
    weight = register_slice("weight", {kTokens, kWidth}, 0, part);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor own = tokens.ge(part.begin).logical_and(tokens.lt(part.end));
    const at::Tensor rows = at::embedding(weight, (tokens - part.begin) * own);
    return sum_values(rows * own.unsqueeze(-1), mesh);
  }
  ShardRange part;
  at::Tensor weight;
};

/// x + w2 relu(w1 (x * scale)) + bias, with hidden units divided.
struct DividedLayerImpl : DividedModule {
  explicit DividedLayerImpl(const ShardMesh& mesh, at::Device device = at::kCPU)
      : DividedModule(mesh, device) {
    const ShardRange part = own_part(kHidden, mesh);
    scale = register_whole("scale", {kWidth});
    up = register_slice("up", {kHidden, kWidth}, 0, part);
    down = register_slice("down", {kWidth, kHidden}, 1, part);
    bias = register_whole("bias", {kWidth});
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::matmul(sum_gradients(x * scale, mesh), up.t()).relu();
    return x + sum_values(at::matmul(hidden, down.t()), mesh) + bias;
  }
  at::Tensor scale, up, down, bias;
};

/// An embedding, two layers and a head that is tied to the embedding, each layer its own unit. Returns this
/// rank's part of the logits.
struct DividedModelImpl : DividedModule {
  explicit DividedModelImpl(const ShardMesh& mesh) : DividedModule(mesh) {
    register_module("table", table);
    register_module("first", first);
    register_module("second", second);
    gain = register_whole("gain", {kWidth});
    head = register_parameter("head", table->weight);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor x = second(first(table(tokens)));
    return at::matmul(sum_gradients(x * gain, mesh), head.t());
  }
  Sharded<TableImpl> table{mesh};
  Sharded<DividedLayerImpl> first{mesh};
  Sharded<DividedLayerImpl> second{mesh};
  at::Tensor gain, head;
};

using DividedModel = Sharded<DividedModelImpl>;

/// Changes the options of one of the model's layers.
using LayerOptions = std::function<void(FullyShardOptions&, DividedLayerImpl&)>;

inline void shard_divided(DividedModel& model, const std::shared_ptr<ShardMesh>& mesh,
                          FullyShardOptions options = {}, const LayerOptions& of_layer = {}) {
  const auto shard = [&](auto& module, FullyShardOptions own) {
    own.sliced_params = module->sliced;
    if constexpr (requires { module->up; }) {
      if (of_layer) of_layer(own, *module);
    }
    fully_shard(module, mesh, own);
  };
  shard(model->table, options);
  shard(model->first, options);
  shard(model->second, options);
  options.tied_params = {model->head};
  shard(model, options);
  model.set_reduce_op(ReduceOp::sum, /*recurse=*/true);
}

/// Forward and backward of micro-step `number`: all ranks of tensor parallelism use the same one.
inline void divided_step(DividedModel& model, int64_t number) {
  const at::Tensor tokens = (integers({2}, number) + 2 + number % 3).to(at::kLong);
  const ShardRange part = own_part(kTokens, model->mesh);
  const at::Tensor wanted = integers({2, kTokens}, 3 * number).narrow(1, part.begin, part.size());
  (model(tokens) * wanted).sum().backward();
}

/// The whole tensors of a full state dict.
inline std::map<std::string, at::Tensor> whole_tensors(const StateDict& values) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, value] : values) tensors[name] = std::get<at::Tensor>(value);
  return tensors;
}

/// Adds the parts of one rank to `all`, except those that it has.
inline void add_parts(StateDict& all, const StateDict& parts) {
  for (const auto& [name, value] : parts) {
    const auto* part = std::get_if<LocalValue>(&value);
    if (part == nullptr) {
      all[name] = value;
      continue;
    }
    auto& joined = std::get<LocalValue>(
        all.try_emplace(name, LocalValue{part->global_shape, {}, at::empty({0})}).first->second);
    for (const ShardSlice& held : part->slices) {
      const auto same = [&](const ShardSlice& known) { return known.slice == held.slice; };
      if (std::any_of(joined.slices.begin(), joined.slices.end(), same)) continue;
      joined.slices.push_back({held.slice, joined.data.numel()});
      joined.data = at::cat({joined.data, part->data.narrow(0, held.local, held.elements())});
    }
  }
}

/// Meshes with tensor parallelism: even and uneven parts, with and without shards and replicas.
inline std::vector<std::vector<int64_t>> divided_meshes() {
  return {{1, 2, 2}, {2, 1, 2}, {1, 3, 2}, {1, 1, 3}, {2, 2, 2}};
}

}  // namespace stepforge::testing
