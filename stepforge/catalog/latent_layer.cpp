// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/latent_layer.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "stepforge/modelspec/call_region.h"
#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge {

namespace {

constexpr double kLatentProjectionStd = 0.02;

ParameterSpec matrix(const std::string& name, const std::string& hf_name, int64_t rows, int64_t columns) {
  return {name,
          {rows, columns},
          {{"weight", hf_name, rows, {Initializer::Kind::truncated_normal, kLatentProjectionStd, 3.0}}},
          ParameterTag::matrix};
}

ParameterSpec norm(const std::string& name, const std::string& hf_name, int64_t size) {
  return {name, {size}, {{"weight", hf_name, size, {Initializer::Kind::ones}}}, ParameterTag::norm};
}

/// Those between the norm and the output projection.
std::vector<ParameterSpec> projections(const std::string& prefix, const std::string& hf_prefix,
                                       const LatentDims& dims) {
  const int64_t q = dims.heads * dims.head_dim();
  std::vector<ParameterSpec> parameters;
  if (dims.q_rank > 0) {
    parameters.push_back(
        matrix(prefix + ".q_down", hf_prefix + "self_attn.q_a_proj.weight", dims.q_rank, dims.width));
    parameters.push_back(
        norm(prefix + ".q_latent_norm", hf_prefix + "self_attn.q_a_layernorm.weight", dims.q_rank));
    parameters.push_back(matrix(prefix + ".q_up", hf_prefix + "self_attn.q_b_proj.weight", q, dims.q_rank));
  } else {
    parameters.push_back(matrix(prefix + ".q", hf_prefix + "self_attn.q_proj.weight", q, dims.width));
  }
  parameters.push_back(matrix(prefix + ".kv_down", hf_prefix + "self_attn.kv_a_proj_with_mqa.weight",
                              dims.kv_rank + dims.rotated, dims.width));
  parameters.push_back(
      norm(prefix + ".kv_latent_norm", hf_prefix + "self_attn.kv_a_layernorm.weight", dims.kv_rank));
  parameters.push_back(matrix(prefix + ".kv_up", hf_prefix + "self_attn.kv_b_proj.weight",
                              dims.heads * (dims.plain + dims.value), dims.kv_rank));
  return parameters;
}

/// All of latent_qkv() as one linear call. It keeps its input.
CallSpec latent_call(const std::vector<ParameterSpec>& parameters, const LatentDims& dims) {
  CallSpec call{.name = "latent_qkv", .rule = TypeRule::linear};
  call.weights = {parameters.back().name};
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.tag != ParameterTag::matrix) continue;
    call.flops += 2.0 * static_cast<double>(parameter.elements());
    call.weight_workspace.narrow = std::max(call.weight_workspace.narrow, parameter.elements());
  }
  const int64_t q = dims.heads * dims.head_dim();
  const int64_t down = dims.kv_rank + dims.rotated;
  const int64_t up = dims.heads * (dims.plain + dims.value);
  const int64_t latents = dims.kv_rank + dims.q_rank;
  const int64_t norms = dims.q_rank > 0 ? 2 : 1;
  call.output.compute = dims.attention().qkv_width();
  call.extra = {2 * latents, norms};
  call.saves = {dims.width + 2 * latents, norms};
  call.queued_saves.compute = dims.width + latents;
  call.forward_workspace.token.compute = q + down + up;
  // First the gradients of kv_up's result, its input and kv_down's result, then those of x and of one latent.
  call.gradient.compute = dims.width;
  call.backward_workspace.token.compute =
      std::max({up + down + dims.kv_rank - dims.width, down, dims.q_rank});
  call.backward_workspace.chunk_token.fp32 = std::max(dims.kv_rank, dims.q_rank);
  call.backward_workspace.chunk = cpu::kPartials;
  call.weight_workspace.fixed_fp32 = latents;
  call.weights_beside = true;
  call.queued.token.compute = up + down + dims.q_rank;
  call.queued.fixed_fp32 = latents;
  return call;
}

}  // namespace

LayerSpec latent_attention_layer(const std::string& prefix, const std::string& hf_prefix,
                                 const LatentDims& dims, const LayerTraits& traits, double depth_std,
                                 bool dropout, const TensorParallel& tensor) {
  // Norm, attention, output projection and residual are those of the attention in whose place it is.
  LayerSpec layer = attention_layer(prefix, hf_prefix, dims.attention(), traits, depth_std, dropout, tensor);
  add_sizes(layer.region, /*keeps_input=*/false);
  layer.region.list = layer.region.generation = {};  // its own calls are not written yet
  std::vector<ParameterSpec> parameters = projections(prefix, hf_prefix, dims);
  std::vector<CallSpec>& calls = layer.region.calls;
  const auto qkv = std::ranges::find(calls, "qkv", &CallSpec::name);
  *qkv = latent_call(parameters, dims);
  *std::next(qkv) = {.name = "latents", .rule = TypeRule::memory};  // in place of the rotation
  for (const ParameterSpec& parameter : parameters)
    if (parameter.name != qkv->weights.front()) std::next(qkv)->weights.push_back(parameter.name);

  const auto packed = std::ranges::find(layer.parameters, prefix + ".qkv", &ParameterSpec::name);
  const auto place = layer.parameters.erase(packed);
  layer.parameters.insert(place, std::make_move_iterator(parameters.begin()),
                          std::make_move_iterator(parameters.end()));
  return layer;
}

}  // namespace stepforge
