// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/layers.h"

#include <algorithm>
#include <cmath>

#include "stepforge/catalog/context_costs.h"
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

/// The norm before a residual branch. Its backward works in place. It keeps its input, except the input of a
/// block, which the executor keeps.
OpCost pre_norm_cost(int64_t width, bool keeps_input, bool slice) {
  OpCost cost;
  cost.name = "rms_norm";
  cost.output.compute = width;
  cost.extra.fp32 = 1;
  cost.saves = {keeps_input ? width : 0, 1};
  cost.backward_workspace = partial_sums(width);
  if (!slice) return cost;
  cost.output = cost.output.of_slice();
  cost.extra = cost.extra.of_slice();
  cost.saves = cost.saves.of_slice();
  ++cost.backward_workspace.chunk;  // the gradient of the weight, which is summed over the slices
  return cost;
}

/// [*, in] x [in, out]. Keeps its input unless its producer does. Backward computes the gradient of the
/// weight and then that of the input. Here these are two calls; the one for the weight, last in the list, has
/// no output.
void add_linear(std::vector<OpCost>& ops, const std::string& name, int64_t in, int64_t out,
                bool keeps_input) {
  OpCost cost;
  cost.name = name;
  cost.flops = 2.0 * static_cast<double>(in) * static_cast<double>(out);
  cost.output.compute = out;
  cost.saves.compute = keeps_input ? in : 0;
  cost.gradient.compute = in;
  ops.push_back(cost);
  OpCost weight;
  weight.name = name + " weight";
  weight.backward_workspace.narrow = in * out;
  ops.push_back(weight);
}

/// add_linear() for a weight that is divided by rows. If its input is a slice, all of it is gathered in forward
/// and again in backward, and the gradient of all is summed.
void add_enter_linear(std::vector<OpCost>& ops, const std::string& name, int64_t in, int64_t out,
                      const TensorParallel& tensor) {
  add_linear(ops, name, in, out, /*keeps_input=*/true);
  if (!tensor.sequence) return;
  OpCost& linear = ops.at(ops.size() - 2);
  linear.forward_workspace.token.compute = in;
  linear.backward_workspace.token.compute = in;
  linear.saves = linear.saves.of_slice();
  linear.gradient = linear.gradient.of_slice();
  ops.back().backward_workspace.token.compute = in;
}

/// add_linear() for a weight that is divided by columns. Its result, the share of all tokens, becomes the sum of
/// a slice of them; in backward the gradient of all tokens is gathered.
void add_leave_linear(std::vector<OpCost>& ops, const std::string& name, int64_t in, int64_t out,
                      bool keeps_input, const TensorParallel& tensor) {
  add_linear(ops, name, in, out, keeps_input);
  if (!tensor.sequence) return;
  ops.at(ops.size() - 2).output = {};
  OpCost sum;
  sum.name = name + " sum";
  sum.output.slice_compute = out;
  sum.forward_workspace.token.compute = out;
  sum.gradient.compute = out;
  ops.push_back(sum);
}

/// Without q/k norms, forward and backward rotate the projection in place.
OpCost rotate_cost(const AttentionDims& dims) {
  OpCost cost;
  cost.name = dims.qk_norm ? "qk_norm_rope" : "rope";
  if (!dims.qk_norm) return cost;
  cost.output.compute = dims.qkv_width();
  cost.extra.fp32 = dims.heads + dims.kv_heads;
  cost.saves = {dims.qkv_width(), dims.heads + dims.kv_heads};
  cost.backward_workspace = partial_sums(3 * dims.head_dim);
  return cost;
}

OpCost attention_cost(const AttentionDims& dims) {
  constexpr int64_t kFloatBytes = sizeof(float);
  OpCost cost;
  cost.name = "attention";
  cost.flops_per_key = 4.0 * static_cast<double>(dims.query_width());
  cost.output.compute = dims.query_width();
  cost.extra.fp32 = dims.heads;
  cost.saves = {dims.qkv_width() + dims.query_width(), dims.heads};
  cost.gradient.compute = dims.qkv_width();
  Workspace& forward = cost.forward_workspace;
  forward.token.fp32 = dims.kv_heads * cpu::attention_packed_floats(dims.head_dim);
  forward.thread_bytes = kFloatBytes * cpu::attention_forward_floats(dims.head_dim);
  forward.tasks_per_document = dims.heads;
  const auto [per_key, fixed] = cpu::attention_backward_floats(dims.head_dim);
  Workspace& backward = cost.backward_workspace;
  backward.thread_bytes = kFloatBytes * fixed;
  backward.thread_bytes_per_key = kFloatBytes * per_key;
  backward.tasks_per_document = dims.kv_heads;
  return cost;
}

/// Adds in place. With dropout, the gradient of its branch is a new, masked tensor.
OpCost residual_cost(int64_t width, bool dropout, bool slice) {
  OpCost cost;
  cost.name = "residual_add";
  cost.gradient.compute = dropout ? width : 0;
  if (slice) cost.gradient = cost.gradient.of_slice();
  return cost;
}

constexpr int64_t gradient_bytes(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

/// The region sums its result, and the gradient of its input, over the ranks that have its other parts. With
/// slices, a sum is a gather at one end of the region and a sum of slices at the other; backward gathers the
/// input once more, and sums the gradient of the norm.
void add_exchange(RegionCost& region, int64_t width, const TensorParallel& tensor) {
  if (tensor.degree == 1) return;
  Exchange& exchange = region.exchange(BlockAxis::tensor);
  exchange.forward.compute = tensor.sequence ? 2 * width : width;
  exchange.backward.compute = tensor.sequence ? 3 * width : width;
  exchange.weight_bytes = tensor.sequence ? gradient_bytes(width) : 0;
}

/// What the norm and the loss of the head need, and exchange, if the vocabulary is divided.
void divide_head(RegionCost& head, int64_t width, int64_t vocab, const TensorParallel& tensor) {
  OpCost& norm = head.ops.front();
  OpCost& loss = head.ops.back();
  Exchange& exchange = head.exchange(BlockAxis::tensor);
  if (tensor.whole_logits) {
    exchange.forward.compute = vocab;
    loss.forward_workspace.chunk_token.compute += vocab;
  } else {
    exchange.forward.fp32 = 5;  // the largest logit, and two sums in fp64
    loss.forward_workspace.chunk_token.fp32 = 5;
  }
  exchange.backward.compute = width;
  if (!tensor.sequence) return;
  norm.output = norm.output.of_slice();
  norm.extra = norm.extra.of_slice();
  loss.forward_workspace.token.compute = width;
  loss.gradient = loss.gradient.of_slice();
  loss.backward_workspace.token.compute = width;
  exchange.forward.compute += width;
  exchange.weight_bytes = gradient_bytes(width);
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
  layer.cost.name = "embedding";
  OpCost cost;
  cost.name = "embedding";
  cost.output.compute = width;
  if (tensor.sequence) {
    cost.output = cost.output.of_slice();
    cost.forward_workspace.token.compute = width;
    cost.gradient.compute = width;
    layer.cost.exchange(BlockAxis::tensor).backward.compute = width;
  }
  layer.cost.ops.push_back(cost);
  if (tensor.degree > 1) layer.cost.exchange(BlockAxis::tensor).forward.compute = width;
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

  layer.cost.name = "attention";
  layer.cost.residual = true;
  auto& ops = layer.cost.ops;
  ops.push_back(pre_norm_cost(dims.width, /*keeps_input=*/false, tensor.sequence));
  add_enter_linear(ops, "qkv", dims.width, dims.qkv_width(), tensor);
  ops.push_back(rotate_cost(dims));
  const bool by_heads = context.heads() > 1;
  ops.push_back(attention_cost(joined_dims(dims, context)));
  if (context.degree > 1) exchange_context(layer.cost, dims, context);
  add_leave_linear(ops, "out", dims.query_width(), dims.width, /*keeps_input=*/by_heads, tensor);
  ops.push_back(residual_cost(dims.width, dropout, tensor.sequence));
  add_exchange(layer.cost, dims.width, tensor);
  if (dims.qk_norm && tensor.degree > 1)
    layer.cost.exchange(BlockAxis::tensor).weight_bytes += gradient_bytes(2 * dims.head_dim);
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

  layer.cost.name = "mlp";
  layer.cost.residual = true;
  auto& ops = layer.cost.ops;
  ops.push_back(pre_norm_cost(width, /*keeps_input=*/true, tensor.sequence));
  add_enter_linear(ops, "gate_up", width, 2 * hidden, tensor);
  OpCost swiglu;
  swiglu.name = "swiglu";
  swiglu.output.compute = hidden;
  swiglu.saves.compute = 2 * hidden;
  swiglu.gradient.compute = 2 * hidden;
  ops.push_back(swiglu);
  add_leave_linear(ops, "down", hidden, width, /*keeps_input=*/true, tensor);
  ops.push_back(residual_cost(width, dropout, tensor.sequence));
  add_exchange(layer.cost, width, tensor);
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
  layer.cost.name = "head";
  OpCost norm;
  norm.name = "rms_norm";
  norm.output.compute = width;
  norm.extra.fp32 = 1;
  layer.cost.ops.push_back(norm);
  OpCost loss;
  loss.name = "linear_cross_entropy";
  loss.flops = 2.0 * static_cast<double>(width) * static_cast<double>(vocab);
  loss.output.fp32 = 1;
  loss.forward_workspace.chunk_token.compute = vocab;
  loss.forward_workspace.chunk = chunk;
  loss.gradient.compute = width;
  loss.backward_workspace.narrow = vocab * width;
  layer.cost.ops.push_back(loss);
  if (tensor.degree > 1) divide_head(layer.cost, width, whole_vocab, tensor);
  return layer;
}

}  // namespace stepforge
