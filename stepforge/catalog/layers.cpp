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

/// A norm's weight, which is added to `offset` and begins where both are 1.
ParameterSpec norm_weight(const std::string& name, const std::string& hf_name, int64_t width, double offset) {
  const auto start = offset == 0.0 ? Initializer::Kind::ones : Initializer::Kind::zeros;
  return {name, {width}, {{"weight", hf_name, width, {start}}}, ParameterTag::norm};
}

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

/// A matrix [*, width] of rows of several tensors, such as gate and up.
ParameterSpec packed(const std::string& name, int64_t width, std::vector<SubTensor> sub_tensors,
                     ParameterTag tag = ParameterTag::matrix) {
  int64_t rows = 0;
  for (const SubTensor& sub_tensor : sub_tensors) rows += sub_tensor.rows;
  return {name, {rows, width}, std::move(sub_tensors), tag};
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

/// Offset and weight of a norm are added while it runs.
void add_offset(CallSpec& call, int64_t elements, double offset) {
  if (offset == 0.0) return;
  call.forward_workspace.fixed_fp32 = elements;
  call.backward_workspace.fixed_fp32 = elements;
}

/// The norm before or after a layer in a residual branch. The first works in place in backward. It keeps its input,
/// except the input of a block, which the executor keeps.
CallSpec branch_norm(const std::string& weight, int64_t width, double offset, bool keeps_input, bool slice) {
  CallSpec call;
  call.name = "rms_norm";
  call.weights = {weight};
  call.output.compute = width;
  call.extra.fp32 = 1;
  call.saves = {keeps_input ? width : 0, 1};
  call.backward_workspace = partial_sums(width);
  compute_norm_gradients(call, width);
  add_offset(call, width, offset);
  if (!slice) return call;
  call.output = call.output.of_slice();
  call.extra = call.extra.of_slice();
  call.saves = call.saves.of_slice();
  call.backward_exchanges = {weight_sum(width)};
  return call;
}

/// Adds in place; its gradient is that of its input.
CallSpec bias_call(const std::string& weight, int64_t width, bool slice) {
  CallSpec call{.name = "bias", .weights = {weight}};
  call.backward_workspace = partial_sums(width);
  compute_norm_gradients(call, width);
  if (slice) call.backward_exchanges = {weight_sum(width)};
  return call;
}

/// Heads that are normed together.
struct NormSpans {
  int64_t q = 1;
  int64_t k = 1;

  NormSpans(const AttentionDims& dims, QkNormScope scope) {
    if (scope == QkNormScope::all_heads) {
      q = dims.heads;
      k = dims.kv_heads;
    }
  }
};

/// Without q/k norms, forward and backward rotate the projection in place.
CallSpec rotate_call(const std::string& prefix, const AttentionDims& dims, const LayerTraits& traits,
                     bool summed) {
  const bool normed = traits.qk_norm != QkNormScope::none;
  CallSpec call;
  call.name = normed ? "qk_norm_rope" : "rope";
  if (!normed) return call;
  const NormSpans spans(dims, traits.qk_norm);
  const int64_t weights = (spans.q + spans.k) * dims.head_dim;
  const int64_t norms = dims.heads / spans.q + dims.kv_heads / spans.k;
  call.weights = {prefix + ".q_norm", prefix + ".k_norm"};
  if (summed) call.backward_exchanges = {weight_sum(weights)};
  call.output.compute = dims.qkv_width();
  call.extra.fp32 = norms;
  call.saves = {dims.qkv_width(), norms};
  call.backward_workspace = partial_sums(weights + std::max(spans.q, spans.k) * dims.head_dim);
  compute_norm_gradients(call, weights);
  add_offset(call, weights, traits.norm_offset);
  return call;
}

CallSpec attention_call(const AttentionDims& dims, const LayerTraits& traits, const std::string& prefix,
                        int64_t heads) {
  constexpr int64_t kFloatBytes = sizeof(float);
  CallSpec call{.name = "attention", .kind = CallKind::attention};
  call.flops_per_key = 2.0 * static_cast<double>(dims.query_width() + dims.out_width());
  call.window = traits.window;
  if (traits.sinks) {
    call.weights = {prefix + ".sinks"};
    compute_norm_gradients(call, heads);
    call.weights_beside = false;  // computed first
  }
  call.output.compute = dims.out_width();
  call.extra.fp32 = dims.heads;
  call.saves = {dims.qkv_width() + dims.out_width(), dims.heads};
  call.gradient.compute = dims.qkv_width();
  Workspace& forward = call.forward_workspace;
  forward.token.fp32 = dims.kv_heads * cpu::attention_packed_floats(dims.head_dim, dims.value_size());
  forward.thread_bytes = kFloatBytes * cpu::attention_forward_floats(dims.head_dim, dims.value_size());
  forward.tasks_per_document = dims.heads;
  const auto [per_key, fixed] = cpu::attention_backward_floats(dims.head_dim, dims.value_size());
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

/// The norm after a layer, if there is one, and the residual add.
void add_end(std::vector<CallSpec>& calls, const std::string& prefix, int64_t width,
             const LayerTraits& traits, bool dropout, bool slice) {
  if (traits.norms_after()) {
    calls.push_back(
        branch_norm(prefix + ".post_norm", width, traits.norm_offset, /*keeps_input=*/true, slice));
    // The residual path has the gradient of its result, too.
    calls.back().gradient.compute = width;
    if (slice) calls.back().gradient = calls.back().gradient.of_slice();
  }
  calls.push_back(residual_call(width, dropout, slice));
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

void compute_on_slices(LayerSpec& layer, const TensorParallel& tensor) {
  compute_on_slices(layer.region, tensor);
  if (tensor.sequence) layer.mesh = UnitMesh::slices;
}

double residual_std(int64_t layer) {
  return kInitialStd / std::sqrt(2.0 * static_cast<double>(layer + 1));
}

int64_t automatic_loss_chunk(int64_t vocab) {
  constexpr int64_t kLogitsBytes = int64_t{4} << 20;
  return std::max<int64_t>(64, kLogitsBytes / (4 * std::max<int64_t>(vocab, 1)) / 64 * 64);
}

LayerSpec embedding_layer(const std::string& prefix, const std::string& hf_name, int64_t vocab, int64_t width,
                          const TensorParallel& tensor, int64_t ahead) {
  LayerSpec layer;
  const SubTensor table{"weight", hf_name, vocab, {Initializer::Kind::normal, kInitialStd}};
  layer.parameters.push_back(packed(
      prefix + ".weight", width, {row_slice(table, width, tensor.part_of(vocab))}, ParameterTag::embedding));
  layer.region.name = "embedding";
  CallSpec lookup{.name = "embedding", .kind = CallKind::lookup, .weights = {prefix + ".weight"}};
  const int64_t rows = 1 + ahead;
  if (!tensor.sequence || !tensor.divided) lookup.output.compute = rows * width;
  lookup.queued.token.fp32 = rows;  // the tokens
  layer.region.calls.push_back(std::move(lookup));
  add_leave(layer.region.calls, rows * width, tensor);
  if (layer.region.calls.back().forward_workspace.token.compute > 0)  // summed one after the other
    layer.region.calls.back().forward_workspace.token.compute = width;
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
    return row_slice({name, hf_prefix + hf_name, heads * head_dim, truncated(kInitialStd)}, whole.width,
                     rows_of_heads(heads, head_dim));
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
      packed(prefix + ".qkv", dims.width,
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
    const NormSpans spans(dims, traits.qk_norm);
    add_norm(".q_norm", "self_attn.q_norm.weight", spans.q * dims.head_dim);
    add_norm(".k_norm", "self_attn.k_norm.weight", spans.k * dims.head_dim);
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

  layer.region.name = "attention";
  layer.region.residual = true;
  auto& calls = layer.region.calls;
  if (traits.norms_before())
    calls.push_back(branch_norm(prefix + ".norm", dims.width, traits.norm_offset, /*keeps_input=*/false,
                                tensor.sequence));
  // Without a norm before it, the input of the projection is that of the block.
  add_enter_linear(calls, "qkv", prefix + ".qkv", dims.width, dims.qkv_width(), tensor,
                   /*keeps_input=*/traits.norms_before());
  if (traits.qkv_bias) calls.push_back(bias_call(prefix + ".qkv_bias", dims.qkv_width(), /*slice=*/false));
  calls.push_back(rotate_call(prefix, dims, traits, /*summed=*/tensor.degree > 1 && tensor.divided));
  const bool by_heads = context.heads() > 1;
  calls.push_back(attention_call(joined_dims(dims, context), traits, prefix, dims.heads));
  if (!by_heads) calls.back().queued_saves.compute = dims.out_width();  // the input of the projection
  if (context.degree > 1) exchange_context(layer.region, dims, context);
  add_leave_linear(calls, "out", prefix + ".out", dims.out_width(), dims.width, /*keeps_input=*/by_heads,
                   tensor, /*own_gradient=*/dropout || traits.norms_after());
  if (traits.out_bias) calls.push_back(bias_call(prefix + ".out_bias", dims.width, tensor.sequence));
  add_end(calls, prefix, dims.width, traits, dropout, tensor.sequence);
  return layer;
}

LayerSpec mlp_layer(const std::string& prefix, const std::string& hf_prefix, int64_t width,
                    int64_t whole_hidden, const LayerTraits& traits, double depth_std, bool dropout,
                    const TensorParallel& tensor) {
  const ShardRange part = tensor.part_of(whole_hidden);
  const int64_t hidden = part.size();
  const auto projection = [&](const char* name, const std::string& hf_name, double std) {
    return row_slice({name, hf_prefix + hf_name, whole_hidden, truncated(std)}, width, part);
  };
  LayerSpec layer;
  const auto add_norm = [&](const char* name, const char* hf_name) {
    layer.parameters.push_back(norm_weight(prefix + name, hf_prefix + hf_name, width, traits.norm_offset));
  };
  // The name of the norm after attention, if there is none.
  if (traits.norms_before())
    add_norm(".norm",
             traits.norms_after() ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
  layer.parameters.push_back(packed(prefix + ".gate_up", width,
                                    {projection("gate", "mlp.gate_proj.weight", kInitialStd),
                                     projection("up", "mlp.up_proj.weight", depth_std)}));
  layer.parameters.push_back(column_slice(prefix + ".down", hf_prefix + "mlp.down_proj.weight", width,
                                          whole_hidden, part, depth_std));
  if (traits.norms_after()) add_norm(".post_norm", "post_feedforward_layernorm.weight");

  layer.region.name = "mlp";
  layer.region.residual = true;
  auto& calls = layer.region.calls;
  if (traits.norms_before())
    calls.push_back(
        branch_norm(prefix + ".norm", width, traits.norm_offset, /*keeps_input=*/true, tensor.sequence));
  add_enter_linear(calls, "gate_up", prefix + ".gate_up", width, 2 * hidden, tensor, /*keeps_input=*/true);
  CallSpec swiglu;
  swiglu.name = "swiglu";
  swiglu.output.compute = hidden;
  swiglu.saves.compute = 2 * hidden;
  swiglu.gradient.compute = 2 * hidden;
  calls.push_back(std::move(swiglu));
  add_leave_linear(calls, "down", prefix + ".down", hidden, width, /*keeps_input=*/true, tensor,
                   /*own_gradient=*/dropout || traits.norms_after());
  add_end(calls, prefix, width, traits, dropout, tensor.sequence);
  return layer;
}

LayerSpec head_layer(const std::string& prefix, int64_t width, int64_t whole_vocab, bool tied, int64_t chunk,
                     const TensorParallel& tensor, double norm_offset) {
  const ShardRange part = tensor.part_of(whole_vocab);
  const int64_t vocab = part.size();
  LayerSpec layer;
  layer.parameters.push_back(norm_weight(prefix + ".norm", "model.norm.weight", width, norm_offset));
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
  add_offset(norm, width, norm_offset);
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
