// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stepforge/catalog/tensor_costs.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/call_region.h"
#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/rotary.h"
#include "stepforge/modelspec/calls/swiglu.h"

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

/// Writes the calls of a layer whose parameters are prefix.name.
class LayerWriter : public ListWriter {
 public:
  LayerWriter(const char* region, const std::string& prefix, const std::vector<ParameterSpec>& parameters,
              const LayerTraits& traits)
      : ListWriter(region), prefix_(prefix + "."), parameters_(parameters), traits_(traits) {}

  int norm(const char* name, int x) {
    return call(CallKind::rms_norm, name, {x}, {weight(name)},
                NormAttributes{traits_.norm_eps, traits_.norm_offset});
  }
  int linear(const char* name, int x) { return call(CallKind::linear, name, {x}, {weight(name)}); }
  int bias(const char* name, int x) { return call(CallKind::bias, name, {x}, {weight(name)}); }
  int rotary(int qkv, const AttentionShape& shape) {
    std::vector<const ParameterSpec*> norms;
    if (traits_.qk_norm != QkNormScope::none) norms = {weight("q_norm"), weight("k_norm")};
    return call(CallKind::rotary, "rotary", {qkv}, norms,
                RotaryAttributes{shape, traits_.norm_eps, traits_.norm_offset, traits_.window > 0});
  }
  int attention(int qkv, const AttentionShape& shape) {
    std::vector<const ParameterSpec*> sinks;
    if (traits_.sinks) sinks = {weight("sinks")};
    return call(CallKind::attention, "attention", {qkv}, sinks, AttentionAttributes{shape, traits_.layer});
  }
  int swiglu(int gate_up) {
    return call(CallKind::swiglu, "swiglu", {gate_up}, {}, SwigluAttributes{traits_.activation});
  }
  /// `site`: a layer has two dropouts, that of attention and then that of the MLP.
  int residual_add(int branch, int x, int site, bool dropout) {
    return call(CallKind::residual_add, "residual_add", {branch, x}, {},
                ResidualAttributes{static_cast<uint64_t>(2 * traits_.layer + site), dropout});
  }

 private:
  const ParameterSpec* weight(const char* name) const {
    return &*std::ranges::find(parameters_, prefix_ + name, &ParameterSpec::name);
  }

  std::string prefix_;
  const std::vector<ParameterSpec>& parameters_;
  const LayerTraits& traits_;
};

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

/// The calls of a rank, from those of a whole layer.
RegionSpec region_of_rank(const CallList& whole, TensorParallel tensor, const ContextParallel& context = {}) {
  CallList training = over_context(over_tensor(whole, tensor), context);
  tensor.sequence = tensor.async = false;
  return region_of(std::move(training), over_tensor(whole, tensor));
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
  CallSpec lookup{.name = "embedding", .rule = TypeRule::lookup, .weights = {prefix + ".weight"}};
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
  layer.region = region_of_rank(attention_calls(prefix, layer.parameters, shape, dims.width, traits, dropout),
                                tensor, context);
  return layer;
}

LayerSpec mlp_layer(const std::string& prefix, const std::string& hf_prefix, int64_t width,
                    int64_t whole_hidden, const LayerTraits& traits, double depth_std, bool dropout,
                    const TensorParallel& tensor) {
  const ShardRange part = tensor.part_of(whole_hidden);
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

  layer.region = region_of_rank(mlp_calls(prefix, layer.parameters, width, traits, dropout), tensor);
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
  CallSpec loss{.name = "linear_cross_entropy", .rule = TypeRule::loss};
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
