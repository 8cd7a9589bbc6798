// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/layers.h"

#include <algorithm>
#include <cmath>

#include "stepforge/catalog/context_costs.h"
#include "stepforge/catalog/tensor_costs.h"
#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge {

namespace {

constexpr double kInitialStd = 0.02;

Initializer truncated(double std) {
  return {Initializer::Kind::truncated_normal, std, 3.0};
}

ParameterSpec norm_weight(const std::string& name, const std::string& hf_name, int64_t width) {
  return {name, {width}, {{"weight", hf_name, width, {Initializer::Kind::ones}}}, ParameterTag::norm};
}

/// Rows [begin, end) of the matrix [rows, columns] that `whole` describes.
SubTensor row_slice(SubTensor whole, int64_t columns, const ShardRange& part) {
  if (part.size() == whole.rows) return whole;
  whole.offsets = {part.begin, 0};
  whole.tensor_shape = {whole.rows, columns};
  whole.rows = part.size();
  return whole;
}

/// A matrix [*, width] of rows of several tensors, such as gate and up.
ParameterSpec packed(const std::string& name, int64_t width, std::vector<SubTensor> sub_tensors,
                     ParameterTag tag = ParameterTag::matrix) {
  int64_t rows = 0;
  for (const SubTensor& sub_tensor : sub_tensors) rows += sub_tensor.rows;
  return {name, {rows, width}, std::move(sub_tensors), tag};
}

/// The columns `part` of a matrix [width, columns].
ParameterSpec column_slice(const std::string& name, const std::string& hf_name, int64_t width,
                           int64_t columns, const ShardRange& part, double std) {
  SubTensor slice{"weight", hf_name, width, truncated(std)};
  if (part.size() != columns) {
    slice.offsets = {0, part.begin};
    slice.tensor_shape = {width, columns};
  }
  return {name, {width, part.size()}, {std::move(slice)}, ParameterTag::matrix};
}

/// Sums over tokens of `columns` numbers each are computed from a bounded number of partial sums.
Workspace partial_sums(int64_t columns) {
  Workspace workspace;
  workspace.chunk_token.fp32 = columns;
  workspace.chunk = cpu::kPartials;
  return workspace;
}

/// The gradients of norms, `elements` in all, are computed beside that of the input.
void compute_norm_gradients(CallSpec& call, int64_t elements) {
  call.weight_workspace.chunk_token.fp32 = elements;
  call.weight_workspace.chunk = 1;
  call.weights_beside = true;
  call.queued = call.weight_workspace;
}

constexpr int64_t gradient_bytes(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

/// The gradient of a weight of `elements` is summed over the ranks.
Exchange weight_sum(int64_t elements) {
  return {BlockAxis::tensor, ExchangeKind::sum, {}, gradient_bytes(elements)};
}

/// The norm before a residual branch. Its backward works in place. It keeps its input, except the input of a
/// block, which the executor keeps.
CallSpec pre_norm(const std::string& weight, int64_t width, bool keeps_input, bool slice) {
  CallSpec call;
  call.name = "rms_norm";
  call.weights = {weight};
  call.output.compute = width;
  call.extra.fp32 = 1;
  call.saves = {keeps_input ? width : 0, 1};
  call.backward_workspace = partial_sums(width);
  compute_norm_gradients(call, width);
  if (!slice) return call;
  call.output = call.output.of_slice();
  call.extra = call.extra.of_slice();
  call.saves = call.saves.of_slice();
  call.backward_exchanges = {weight_sum(width)};
  return call;
}

/// Without q/k norms, forward and backward rotate the projection in place.
CallSpec rotate_call(const std::string& prefix, const AttentionDims& dims, bool summed) {
  CallSpec call;
  call.name = dims.qk_norm ? "qk_norm_rope" : "rope";
  if (!dims.qk_norm) return call;
  call.weights = {prefix + ".q_norm", prefix + ".k_norm"};
  if (summed) call.backward_exchanges = {weight_sum(2 * dims.head_dim)};
  call.output.compute = dims.qkv_width();
  call.extra.fp32 = dims.heads + dims.kv_heads;
  call.saves = {dims.qkv_width(), dims.heads + dims.kv_heads};
  call.backward_workspace = partial_sums(3 * dims.head_dim);
  compute_norm_gradients(call, 2 * dims.head_dim);
  return call;
}

CallSpec attention_call(const AttentionDims& dims) {
  constexpr int64_t kFloatBytes = sizeof(float);
  CallSpec call{.name = "attention", .kind = CallKind::attention};
  call.flops_per_key = 4.0 * static_cast<double>(dims.query_width());
  call.output.compute = dims.query_width();
  call.extra.fp32 = dims.heads;
  call.saves = {dims.qkv_width() + dims.query_width(), dims.heads};
  call.gradient.compute = dims.qkv_width();
  Workspace& forward = call.forward_workspace;
  forward.token.fp32 = dims.kv_heads * cpu::attention_packed_floats(dims.head_dim);
  forward.thread_bytes = kFloatBytes * cpu::attention_forward_floats(dims.head_dim);
  forward.tasks_per_document = dims.heads;
  const auto [per_key, fixed] = cpu::attention_backward_floats(dims.head_dim);
  Workspace& backward = call.backward_workspace;
  backward.thread_bytes = kFloatBytes * fixed;
  backward.thread_bytes_per_key = kFloatBytes * per_key;
  backward.tasks_per_document = dims.kv_heads;
  return call;
}

/// Adds in place. With dropout, the gradient of its branch is a new, masked tensor.
CallSpec residual_call(int64_t width, bool dropout, bool slice) {
  CallSpec call;
  call.name = "residual_add";
  call.gradient.compute = dropout ? width : 0;
  if (slice) call.gradient = call.gradient.of_slice();
  return call;
}

/// The loss exchanges what it needs of the other parts of the vocabulary.
void divide_loss(CallSpec& loss, int64_t vocab, const TensorParallel& tensor) {
  if (tensor.whole_logits) {
    loss.forward_exchanges = {over_tensor(ExchangeKind::gather, {vocab})};
    loss.forward_workspace.chunk_token.compute += vocab;
  } else {
    // The largest logit of each rank, and two sums in fp64.
    loss.forward_exchanges = {over_tensor(ExchangeKind::max, {0, tensor.degree}),
                              over_tensor(ExchangeKind::sum, {0, 4})};
    loss.forward_workspace.chunk_token.fp32 = 4 + tensor.degree;
  }
}

/// The final norm and the loss work on slices of the tokens, between which all are gathered.
void take_slices(CallSpec& norm, CallSpec& loss, int64_t width, bool divided) {
  norm.output = norm.output.of_slice();
  norm.extra = norm.extra.of_slice();
  norm.backward_exchanges = {weight_sum(width)};
  if (!divided) return;  // counted where all tokens are gathered
  loss.forward_workspace.token.compute = width;
  loss.gradient = loss.gradient.of_slice();
  loss.backward_workspace.token.compute = width;
}

}  // namespace

double residual_std(int64_t layer) {
  return kInitialStd / std::sqrt(2.0 * static_cast<double>(layer + 1));
}

int64_t automatic_loss_chunk(int64_t vocab) {
  constexpr int64_t kLogitsBytes = int64_t{4} << 20;
  return std::max<int64_t>(64, kLogitsBytes / (4 * std::max<int64_t>(vocab, 1)) / 64 * 64);
}

LayerSpec embedding_layer(const std::string& prefix, const std::string& hf_name, int64_t vocab, int64_t width,
                          const TensorParallel& tensor) {
  LayerSpec layer;
  const SubTensor table{"weight", hf_name, vocab, {Initializer::Kind::normal, kInitialStd}};
  layer.parameters.push_back(packed(
      prefix + ".weight", width, {row_slice(table, width, tensor.part_of(vocab))}, ParameterTag::embedding));
  layer.region.name = "embedding";
  CallSpec lookup{.name = "embedding", .kind = CallKind::lookup, .weights = {prefix + ".weight"}};
  if (!tensor.sequence || !tensor.divided) lookup.output.compute = width;
  lookup.queued.token.fp32 = 1;  // the tokens
  layer.region.calls.push_back(std::move(lookup));
  add_leave(layer.region.calls, width, tensor);
  return layer;
}

LayerSpec attention_layer(const std::string& prefix, const std::string& hf_prefix, const AttentionDims& whole,
                          double depth_std, bool dropout, const TensorParallel& tensor,
                          const ContextParallel& context) {
  const auto rows_of_heads = [&](int64_t heads) {
    const ShardRange part = tensor.part_of(heads);
    return ShardRange{part.begin * whole.head_dim, part.end * whole.head_dim};
  };
  const auto projection = [&](const char* name, const std::string& hf_name, int64_t heads) {
    return row_slice({name, hf_prefix + hf_name, heads * whole.head_dim, truncated(kInitialStd)}, whole.width,
                     rows_of_heads(heads));
  };
  AttentionDims dims = whole;
  dims.heads = tensor.part_of(whole.heads).size();
  dims.kv_heads = tensor.part_of(whole.kv_heads).size();
  LayerSpec layer;
  layer.parameters.push_back(norm_weight(prefix + ".norm", hf_prefix + "input_layernorm.weight", dims.width));
  layer.parameters.push_back(packed(prefix + ".qkv", dims.width,
                                    {projection("q", "self_attn.q_proj.weight", whole.heads),
                                     projection("k", "self_attn.k_proj.weight", whole.kv_heads),
                                     projection("v", "self_attn.v_proj.weight", whole.kv_heads)}));
  if (dims.qk_norm) {
    layer.parameters.push_back(
        norm_weight(prefix + ".q_norm", hf_prefix + "self_attn.q_norm.weight", dims.head_dim));
    layer.parameters.push_back(
        norm_weight(prefix + ".k_norm", hf_prefix + "self_attn.k_norm.weight", dims.head_dim));
  }
  layer.parameters.push_back(column_slice(prefix + ".out", hf_prefix + "self_attn.o_proj.weight", dims.width,
                                          whole.query_width(), rows_of_heads(whole.heads), depth_std));

  layer.region.name = "attention";
  layer.region.residual = true;
  auto& calls = layer.region.calls;
  calls.push_back(pre_norm(prefix + ".norm", dims.width, /*keeps_input=*/false, tensor.sequence));
  add_enter_linear(calls, "qkv", prefix + ".qkv", dims.width, dims.qkv_width(), tensor);
  calls.push_back(rotate_call(prefix, dims, /*summed=*/tensor.degree > 1 && tensor.divided));
  const bool by_heads = context.heads() > 1;
  calls.push_back(attention_call(joined_dims(dims, context)));
  if (!by_heads) calls.back().queued_saves.compute = dims.query_width();  // the input of the projection
  if (context.degree > 1) exchange_context(layer.region, dims, context);
  add_leave_linear(calls, "out", prefix + ".out", dims.query_width(), dims.width, /*keeps_input=*/by_heads,
                   tensor);
  calls.push_back(residual_call(dims.width, dropout, tensor.sequence));
  return layer;
}

LayerSpec mlp_layer(const std::string& prefix, const std::string& hf_prefix, int64_t width,
                    int64_t whole_hidden, double depth_std, bool dropout, const TensorParallel& tensor) {
  const ShardRange part = tensor.part_of(whole_hidden);
  const int64_t hidden = part.size();
  const auto projection = [&](const char* name, const std::string& hf_name, double std) {
    return row_slice({name, hf_prefix + hf_name, whole_hidden, truncated(std)}, width, part);
  };
  LayerSpec layer;
  layer.parameters.push_back(
      norm_weight(prefix + ".norm", hf_prefix + "post_attention_layernorm.weight", width));
  layer.parameters.push_back(packed(prefix + ".gate_up", width,
                                    {projection("gate", "mlp.gate_proj.weight", kInitialStd),
                                     projection("up", "mlp.up_proj.weight", depth_std)}));
  layer.parameters.push_back(column_slice(prefix + ".down", hf_prefix + "mlp.down_proj.weight", width,
                                          whole_hidden, part, depth_std));

  layer.region.name = "mlp";
  layer.region.residual = true;
  auto& calls = layer.region.calls;
  calls.push_back(pre_norm(prefix + ".norm", width, /*keeps_input=*/true, tensor.sequence));
  add_enter_linear(calls, "gate_up", prefix + ".gate_up", width, 2 * hidden, tensor);
  CallSpec swiglu;
  swiglu.name = "swiglu";
  swiglu.output.compute = hidden;
  swiglu.saves.compute = 2 * hidden;
  swiglu.gradient.compute = 2 * hidden;
  calls.push_back(std::move(swiglu));
  add_leave_linear(calls, "down", prefix + ".down", hidden, width, /*keeps_input=*/true, tensor);
  calls.push_back(residual_call(width, dropout, tensor.sequence));
  return layer;
}

LayerSpec head_layer(const std::string& prefix, int64_t width, int64_t whole_vocab, bool tied, int64_t chunk,
                     const TensorParallel& tensor) {
  const ShardRange part = tensor.part_of(whole_vocab);
  const int64_t vocab = part.size();
  LayerSpec layer;
  layer.parameters.push_back(norm_weight(prefix + ".norm", "model.norm.weight", width));
  if (!tied) {
    const SubTensor output{"weight", "lm_head.weight", whole_vocab,
                           truncated(1.0 / std::sqrt(static_cast<double>(width)))};
    layer.parameters.push_back(
        packed(prefix + ".weight", width, {row_slice(output, width, part)}, ParameterTag::head));
  }
  layer.region.name = "head";
  auto& calls = layer.region.calls;
  CallSpec norm;
  norm.name = "rms_norm";
  norm.weights = {prefix + ".norm"};
  norm.output.compute = width;
  norm.extra.fp32 = 1;
  CallSpec loss{.name = "linear_cross_entropy", .kind = CallKind::loss};
  loss.weights = {tied ? "embedding.weight" : prefix + ".weight"};
  loss.flops = 2.0 * static_cast<double>(width) * static_cast<double>(vocab);
  loss.output.fp32 = 1;
  loss.forward_workspace.chunk_token.compute = vocab;
  loss.forward_workspace.chunk = chunk;
  loss.gradient.compute = width;
  loss.backward_workspace.narrow = vocab * width;
  if (tensor.degree > 1 && tensor.divided) divide_loss(loss, whole_vocab, tensor);
  if (tensor.sequence) take_slices(norm, loss, width, tensor.divided);
  calls.push_back(std::move(norm));
  add_enter(calls, width, tensor);
  calls.push_back(std::move(loss));
  return layer;
}

}  // namespace stepforge
