// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/catalog/layer_writer.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/modelspec/calls/score.h"

namespace stepforge {

namespace {

/// Elements [begin, end) of the vector that `whole` describes.
SubTensor slice_of_vector(SubTensor whole, const ShardRange& part) {
  if (part.size() == whole.rows) return whole;
  whole.offsets = {part.begin};
  whole.tensor_shape = {whole.rows};
  whole.rows = part.size();
  return whole;
}

/// Rows [begin, end) of the matrix [rows, columns] that `whole` describes.
SubTensor row_slice(SubTensor whole, int64_t columns, const ShardRange& part) {
  if (part.size() == whole.rows) return whole;
  whole.offsets = {part.begin, 0};
  whole.tensor_shape = {whole.rows, columns};
  whole.rows = part.size();
  return whole;
}

/// A vector of the elements of several biases.
ParameterSpec packed_bias(const std::string& name, std::vector<SubTensor> sub_tensors) {
  int64_t elements = 0;
  for (const SubTensor& sub_tensor : sub_tensors) elements += sub_tensor.rows;
  return {name, {elements}, std::move(sub_tensors), ParameterTag::bias};
}

/// The columns `part` of a matrix [width, columns].
ParameterSpec column_slice(const std::string& name, const std::string& hf_name, int64_t width,
                           int64_t columns, const ShardRange& part, double std) {
  SubTensor slice{"weight", hf_name, width, truncated_normal(std)};
  if (part.size() != columns) {
    slice.offsets = {0, part.begin};
    slice.tensor_shape = {width, columns};
  }
  return {name, {width, part.size()}, {std::move(slice)}, ParameterTag::matrix};
}

CallList attention_calls(const std::string& prefix, const std::vector<ParameterSpec>& parameters,
                         const AttentionShape& shape, int64_t width, const LayerTraits& traits,
                         bool dropout) {
  LayerWriter layer("attention", prefix, parameters, traits);
  const int x = layer.input({"hidden", width});
  int y = traits.norms_before() ? layer.norm("norm", x) : x;
  y = layer.linear("qkv", y);
  if (traits.qkv_bias) y = layer.bias("qkv_bias", y);
  y = layer.rotary(y, shape);
  y = layer.attention(y, shape);
  y = layer.linear("out", y);
  if (traits.out_bias) y = layer.bias("out_bias", y);
  if (traits.norms_after()) y = layer.norm("post_norm", y);
  return layer.finish({layer.residual_add(y, x, 0, dropout)});
}

CallList mlp_calls(const std::string& prefix, const std::vector<ParameterSpec>& parameters, int64_t width,
                   const LayerTraits& traits, bool dropout) {
  LayerWriter layer("mlp", prefix, parameters, traits);
  const int x = layer.input({"hidden", width});
  int y = traits.norms_before() ? layer.norm("norm", x) : x;
  y = layer.linear("gate_up", y);
  y = layer.swiglu(y);
  y = layer.linear("down", y);
  if (traits.norms_after()) y = layer.norm("post_norm", y);
  return layer.finish({layer.residual_add(y, x, 1, dropout)});
}

CallList embedding_calls(const ParameterSpec& table, int64_t ahead, double factor) {
  ListWriter layer("embedding");
  std::vector<int> outputs;
  for (int64_t i = 0; i <= ahead; ++i)
    outputs.push_back(layer.call(kLookup, i == 0 ? "embedding" : format("embedding {}", i), {}, {&table},
                                 LookupAttributes{factor, i}));
  return layer.finish(std::move(outputs));
}

/// The norm, and `last` of its result.
CallList head_calls(const ParameterSpec& norm, const HeadDims& head, Call last) {
  ListWriter layer("head");
  const int x = layer.input({"hidden", head.width});
  last.operands = {
      layer.call(kRmsNorm, "norm", {x}, {&norm}, NormAttributes{head.norm_eps, head.norm_offset})};
  return layer.finish({layer.add(std::move(last))});
}

Call loss_call(const CallWeight& output, const HeadDims& head, const TensorParallel& tensor) {
  const LossAttributes loss{.chunk = head.chunk,
                            .vocabulary = head.vocab,
                            .parts = tensor.divided ? tensor.degree : 1,
                            .whole_logits = tensor.whole_logits,
                            .logit_cap = head.logit_cap};
  return {.kind = &kLoss, .name = "loss", .operands = {}, .weights = {output}, .attributes = loss};
}

}  // namespace

void set_lists_of_rank(LayerSpec& layer, const CallList& whole, TensorParallel tensor,
                       const ContextParallel& context) {
  layer.list = over_context(over_tensor(whole, tensor), context);
  tensor.sequence = tensor.async = false;
  layer.generation = over_tensor(whole, tensor);
}

void set_lists_on_slices(LayerSpec& layer, CallList whole, const TensorParallel& tensor) {
  layer.list = on_slices(whole, tensor);
  layer.generation = std::move(whole);
}

double residual_std(int64_t layer) {
  return kProjectionStd / std::sqrt(2.0 * static_cast<double>(layer + 1));
}

int64_t automatic_loss_chunk(int64_t vocab) {
  constexpr int64_t kLogitsBytes = int64_t{4} << 20;
  return std::max<int64_t>(64, kLogitsBytes / (4 * std::max<int64_t>(vocab, 1)) / 64 * 64);
}

LayerSpec embedding_layer(const std::string& prefix, const std::string& hf_name, int64_t vocab, int64_t width,
                          const TensorParallel& tensor, int64_t ahead, double factor) {
  LayerSpec layer;
  const SubTensor table{"weight", hf_name, vocab, {Initializer::Kind::normal, kProjectionStd}};
  layer.parameters.push_back(packed_matrix(
      prefix + ".weight", width, {row_slice(table, width, tensor.part_of(vocab))}, ParameterTag::embedding));
  set_lists_of_rank(layer, embedding_calls(layer.parameters.front(), ahead, factor), tensor);
  return layer;
}

LayerSpec attention_layer(const std::string& prefix, const std::string& hf_prefix, const AttentionDims& whole,
                          const LayerTraits& traits, double depth_std, bool dropout,
                          const TensorParallel& tensor, const ContextParallel& context) {
  const auto rows_of_heads = [&](int64_t heads, int64_t head_dim) {
    const ShardRange part = tensor.part_of(heads);
    return ShardRange{part.begin * head_dim, part.end * head_dim};
  };
  const auto projection = [&](const char* name, const std::string& hf_name, int64_t heads, int64_t head_dim) {
    return row_slice({name, hf_prefix + hf_name, heads * head_dim, truncated_normal(kProjectionStd)},
                     whole.width, rows_of_heads(heads, head_dim));
  };
  const auto bias = [&](const char* name, const std::string& hf_name, int64_t heads) {
    return slice_of_vector({name, hf_prefix + hf_name, heads * whole.head_dim, {Initializer::Kind::zeros}},
                           rows_of_heads(heads, whole.head_dim));
  };
  AttentionDims dims = whole;
  dims.heads = tensor.part_of(whole.heads).size();
  dims.kv_heads = tensor.part_of(whole.kv_heads).size();
  LayerSpec layer;
  const auto add_norm = [&](const char* name, const char* hf_name, int64_t width) {
    layer.parameters.push_back(norm_weight(prefix + name, hf_prefix + hf_name, width, traits.norm_offset));
  };
  if (traits.norms_before()) add_norm(".norm", "input_layernorm.weight", dims.width);
  layer.parameters.push_back(
      packed_matrix(prefix + ".qkv", dims.width,
                    {projection("q", "self_attn.q_proj.weight", whole.heads, whole.head_dim),
                     projection("k", "self_attn.k_proj.weight", whole.kv_heads, whole.head_dim),
                     projection("v", "self_attn.v_proj.weight", whole.kv_heads, whole.value_size())}));
  if (traits.qkv_bias) {
    layer.parameters.push_back(packed_bias(
        prefix + ".qkv_bias",
        {bias("q", "self_attn.q_proj.bias", whole.heads), bias("k", "self_attn.k_proj.bias", whole.kv_heads),
         bias("v", "self_attn.v_proj.bias", whole.kv_heads)}));
  }
  if (traits.qk_norm != QkNormScope::none) {
    const bool together = traits.qk_norm == QkNormScope::all_heads;
    add_norm(".q_norm", "self_attn.q_norm.weight", (together ? dims.heads : 1) * dims.head_dim);
    add_norm(".k_norm", "self_attn.k_norm.weight", (together ? dims.kv_heads : 1) * dims.head_dim);
  }
  layer.parameters.push_back(column_slice(prefix + ".out", hf_prefix + "self_attn.o_proj.weight", dims.width,
                                          whole.out_width(), rows_of_heads(whole.heads, whole.value_size()),
                                          depth_std));
  if (traits.sinks)
    layer.parameters.push_back(packed_bias(
        prefix + ".sinks",
        {slice_of_vector({"weight", hf_prefix + "self_attn.sinks", whole.heads, {Initializer::Kind::zeros}},
                         tensor.part_of(whole.heads))}));
  if (traits.out_bias)
    layer.parameters.push_back(packed_bias(
        prefix + ".out_bias",
        {{"weight", hf_prefix + "self_attn.o_proj.bias", dims.width, {Initializer::Kind::zeros}}}));
  if (traits.norms_after()) add_norm(".post_norm", "post_attention_layernorm.weight", dims.width);

  const AttentionShape shape{dims.heads,    dims.kv_heads,    dims.head_dim, traits.query_scale,
                             traits.window, traits.score_cap, dims.value_dim};
  set_lists_of_rank(layer, attention_calls(prefix, layer.parameters, shape, dims.width, traits, dropout),
                    tensor, context);
  return layer;
}

LayerSpec mlp_layer(const std::string& prefix, const std::string& hf_prefix, int64_t width,
                    int64_t whole_hidden, const LayerTraits& traits, double depth_std, bool dropout,
                    const TensorParallel& tensor) {
  const ShardRange part = tensor.part_of(whole_hidden);
  const auto projection = [&](const char* name, const std::string& hf_name, double std) {
    return row_slice({name, hf_prefix + hf_name, whole_hidden, truncated_normal(std)}, width, part);
  };
  LayerSpec layer;
  const auto add_norm = [&](const char* name, const char* hf_name) {
    layer.parameters.push_back(norm_weight(prefix + name, hf_prefix + hf_name, width, traits.norm_offset));
  };
  // The name of the norm after attention, if there is none.
  if (traits.norms_before())
    add_norm(".norm",
             traits.norms_after() ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
  layer.parameters.push_back(packed_matrix(prefix + ".gate_up", width,
                                           {projection("gate", "mlp.gate_proj.weight", kProjectionStd),
                                            projection("up", "mlp.up_proj.weight", depth_std)}));
  layer.parameters.push_back(column_slice(prefix + ".down", hf_prefix + "mlp.down_proj.weight", width,
                                          whole_hidden, part, depth_std));
  if (traits.norms_after()) add_norm(".post_norm", "post_feedforward_layernorm.weight");

  set_lists_of_rank(layer, mlp_calls(prefix, layer.parameters, width, traits, dropout), tensor);
  return layer;
}

LayerSpec head_layer(const std::string& prefix, const HeadDims& head, const TensorParallel& tensor) {
  const ShardRange part = tensor.part_of(head.vocab);
  LayerSpec layer;
  layer.parameters.push_back(norm_weight(prefix + ".norm", head.hf_norm, head.width, head.norm_offset));
  CallWeight output{
      head.output, {part.size(), head.width}, part.size() < head.vocab ? Division::rows : Division::whole};
  if (head.output.empty()) {
    const SubTensor weight{"weight", "lm_head.weight", head.vocab,
                           truncated_normal(1.0 / std::sqrt(static_cast<double>(head.width)))};
    output.name = prefix + ".weight";
    layer.parameters.push_back(
        packed_matrix(output.name, head.width, {row_slice(weight, head.width, part)}, ParameterTag::head));
  }
  set_lists_of_rank(layer, head_calls(layer.parameters.front(), head, loss_call(output, head, tensor)),
                    tensor);
  return layer;
}

LayerSpec score_layer(const std::string& prefix, const HeadDims& head, double std,
                      const TensorParallel& tensor) {
  LayerSpec layer;
  layer.parameters.push_back(norm_weight(prefix + ".norm", head.hf_norm, head.width, head.norm_offset));
  layer.parameters.push_back(packed_matrix(
      prefix + ".score", head.width,
      {{"weight", std::string(kScoreTensor), 1, {Initializer::Kind::normal, std}}}, ParameterTag::score));
  Call score{
      .kind = &kScore, .name = "score", .operands = {}, .weights = {call_weight(layer.parameters.back())}};
  set_lists_of_rank(layer, head_calls(layer.parameters.front(), head, std::move(score)), tensor);
  return layer;
}

}  // namespace stepforge
