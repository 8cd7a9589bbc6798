// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/latent_layer.h"

#include <utility>
#include <vector>

#include "stepforge/catalog/layer_writer.h"
#include "stepforge/modelspec/calls/columns.h"
#include "stepforge/modelspec/calls/latent_heads.h"

namespace stepforge {

namespace {

/// Of the norms of latents, whatever that of the other norms is: as transformers and DeepSeek's own code have it.
constexpr double kLatentEps = 1e-6;

ParameterSpec matrix(const std::string& name, const std::string& hf_name, int64_t rows, int64_t columns,
                     double std = kProjectionStd) {
  return packed_matrix(name, columns, {{"weight", hf_name, rows, truncated_normal(std)}});
}

std::vector<ParameterSpec> latent_parameters(const std::string& prefix, const std::string& hf_prefix,
                                             const LatentDims& dims, double depth_std) {
  const auto hf_name = [&](const char* name) { return hf_prefix + "self_attn." + name + ".weight"; };
  const int64_t q = dims.heads * dims.head_dim();
  std::vector<ParameterSpec> parameters = {
      norm_weight(prefix + ".norm", hf_prefix + "input_layernorm.weight", dims.width)};
  if (dims.q_rank > 0) {
    parameters.push_back(matrix(prefix + ".q_down", hf_name("q_a_proj"), dims.q_rank, dims.width));
    parameters.push_back(norm_weight(prefix + ".q_latent_norm", hf_name("q_a_layernorm"), dims.q_rank));
    parameters.push_back(matrix(prefix + ".q_up", hf_name("q_b_proj"), q, dims.q_rank));
  } else {
    parameters.push_back(matrix(prefix + ".q", hf_name("q_proj"), q, dims.width));
  }
  parameters.push_back(
      matrix(prefix + ".kv_down", hf_name("kv_a_proj_with_mqa"), dims.kv_rank + dims.rotated, dims.width));
  parameters.push_back(norm_weight(prefix + ".kv_latent_norm", hf_name("kv_a_layernorm"), dims.kv_rank));
  parameters.push_back(
      matrix(prefix + ".kv_up", hf_name("kv_b_proj"), dims.heads * (dims.plain + dims.value), dims.kv_rank));
  parameters.push_back(
      matrix(prefix + ".out", hf_name("o_proj"), dims.width, dims.heads * dims.value, depth_std));
  return parameters;
}

CallList latent_calls(const std::string& prefix, const std::vector<ParameterSpec>& parameters,
                      const LatentDims& dims, const LayerTraits& traits, bool dropout) {
  const AttentionDims of_heads = dims.attention();
  const AttentionShape shape{of_heads.heads, of_heads.kv_heads, of_heads.head_dim, traits.query_scale,
                             traits.window,  traits.score_cap,  of_heads.value_dim};
  LayerWriter layer("attention", prefix, parameters, traits);
  const int x = layer.input({"hidden", dims.width});
  const int y = layer.norm("norm", x);
  const auto latent_norm = [&](const char* name, int latent) {
    return layer.norm(name, latent, NormAttributes{kLatentEps});
  };
  int q = layer.linear(dims.q_rank > 0 ? "q_down" : "q", y);
  if (dims.q_rank > 0) q = layer.linear("q_up", latent_norm("q_latent_norm", q));
  const int kv =
      layer.call(kSplit, "kv_split", {layer.linear("kv_down", y)}, {}, SplitAttributes{dims.kv_rank});
  const int rotated = layer.results().back();
  const int up = layer.linear("kv_up", latent_norm("kv_latent_norm", kv));
  int out =
      layer.call(kLatentHeads, "heads", {q, up, rotated}, {}, LatentHeadsAttributes{shape, dims.rotated});
  out = layer.linear("out", layer.attention(out, shape));
  return layer.finish({layer.residual_add(out, x, 0, dropout)});
}

}  // namespace

LayerSpec latent_attention_layer(const std::string& prefix, const std::string& hf_prefix,
                                 const LatentDims& dims, const LayerTraits& traits, double depth_std,
                                 bool dropout, const TensorParallel& tensor) {
  LayerSpec layer;
  layer.parameters = latent_parameters(prefix, hf_prefix, dims, depth_std);
  set_lists_of_rank(layer, latent_calls(prefix, layer.parameters, dims, traits, dropout), tensor);
  return layer;
}

}  // namespace stepforge
