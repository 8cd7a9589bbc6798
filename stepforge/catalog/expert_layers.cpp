// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/expert_layers.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/biased_experts.h"
#include "stepforge/catalog/layer_writer.h"
#include "stepforge/modelspec/calls/experts.h"
#include "stepforge/modelspec/calls/router.h"

namespace stepforge {

namespace {

SubTensor matrix(const std::string& name, const std::string& hf_name, int64_t rows, double std) {
  if (hf_name.empty()) throw Error(format("experts: this family has no Hugging Face name for '{}'", name));
  return {name, hf_name, rows, truncated_normal(std)};
}

/// `part`: the rows and columns of the matrix `whole` [rows, columns] that this rank has.
SubTensor of_rank(SubTensor whole, int64_t columns, const ShardRange& part_rows,
                  const ShardRange& part_columns) {
  if (part_rows.size() == whole.rows && part_columns.size() == columns) return whole;
  whole.offsets = {part_rows.begin, part_columns.begin};
  whole.tensor_shape = {whole.rows, columns};
  whole.rows = part_rows.size();
  return whole;
}

std::vector<ParameterSpec> expert_parameters(const std::string& prefix, const std::string& hf_prefix,
                                             const ExpertDims& dims, const ExpertNames& names,
                                             double depth_std, const ExpertParallel& parallel) {
  const ShardRange own = parallel.part_of(dims.experts);
  const ShardRange units = parallel.units_of(dims.hidden);
  const ShardRange all{0, dims.width};
  std::vector<SubTensor> gate_up;
  std::vector<SubTensor> down;
  for (int64_t e = 0; e < dims.experts; ++e) {
    const bool held = e >= own.begin && e < own.end;
    const std::string hf_name = format("{}{}{}.", hf_prefix, names.experts, e);
    // Of other experts an empty slice.
    const auto add = [&](std::vector<SubTensor>& list, const char* part, const std::string& name,
                         int64_t rows, int64_t columns, const ShardRange& of_rows,
                         const ShardRange& of_columns, double std) {
      list.push_back(of_rank(matrix(format("{}.{}", e, part), hf_name + name, rows, std), columns,
                             held ? of_rows : ShardRange{0, 0}, of_columns));
    };
    add(gate_up, "gate", names.gate, dims.hidden, dims.width, units, all, kProjectionStd);
    add(gate_up, "up", names.up, dims.hidden, dims.width, units, all, depth_std);
    add(down, "down", names.down, dims.width, dims.hidden, all, units, depth_std);
  }
  std::vector<ParameterSpec> parameters = {
      packed_matrix(prefix + ".expert_gate_up", dims.width, std::move(gate_up)),
      packed_matrix(prefix + ".expert_down", units.size(), std::move(down))};
  for (ParameterSpec& parameter : parameters)
    parameter.used_share = static_cast<double>(dims.chosen) / static_cast<double>(dims.experts);
  return parameters;
}

std::string shared_name(const std::string& hf_prefix, const ExpertNames& names, const char* matrix) {
  return names.shared.empty() ? "" : hf_prefix + names.shared + matrix;
}

void add_shared(std::vector<ParameterSpec>& parameters, const std::string& prefix,
                const std::string& hf_prefix, const ExpertDims& dims, const ExpertNames& names,
                double depth_std) {
  const auto hf_name = [&](const char* name) { return shared_name(hf_prefix, names, name); };
  parameters.push_back(
      packed_matrix(prefix + ".shared_gate_up", dims.width,
                    {matrix("gate", hf_name("gate_proj.weight"), dims.shared_hidden, kProjectionStd),
                     matrix("up", hf_name("up_proj.weight"), dims.shared_hidden, depth_std)}));
  parameters.push_back(packed_matrix(prefix + ".shared_down", dims.shared_hidden,
                                     {matrix("weight", hf_name("down_proj.weight"), dims.width, depth_std)}));
  if (!dims.shared_gate) return;
  const std::string gate = names.shared_gate.empty() ? "" : hf_prefix + names.shared_gate;
  parameters.push_back(
      packed_matrix(prefix + ".shared_gate", dims.width, {matrix("weight", gate, 1, kProjectionStd)}));
}

/// What a token takes of its router: values of a list.
struct Routed {
  int weights;
  int experts;
};

/// The result of the expert that all tokens take, and its gate; -1 if there is none.
struct Shared {
  int result = -1;
  int gate = -1;
};

/// Writes the calls of the parts of a layer.
class ExpertWriter : public LayerWriter {
 public:
  ExpertWriter(const char* region, const std::string& prefix, const std::vector<ParameterSpec>& parameters,
               const LayerTraits& traits, const ExpertDims& dims)
      : LayerWriter(region, prefix, parameters, traits), prefix_(prefix), dims_(dims) {}

  Routed route(int tokens, const RouterSettings& settings) {
    std::vector<CallWeight> weights = {call_weight(*weight("router"))};
    if (dims_.biased) weights.push_back(call_weight(*weight("router_bias")));
    if (traits().corrected())
      weights.push_back({.name = prefix_ + ".correction", .shape = {dims_.experts}, .trained = false});
    add({.kind = &kRoute,
         .name = "route",
         .operands = {tokens},
         .weights = std::move(weights),
         .attributes = RouteAttributes{settings, traits().layer, dims_.biased, traits().corrected()}});
    return {results()[0], results()[1]};
  }

  /// `held`: experts of this rank. Of each token, or of rows with one expert each.
  int experts(int tokens, const Routed& routed, int64_t held, int64_t chosen) {
    const ExpertsAttributes attributes{held, chosen, dims_.biased};
    const auto product = [&](const CallKind& kind, const char* name, std::vector<int> operands) {
      std::vector<const ParameterSpec*> weights = {weight(name)};
      if (dims_.biased) weights.push_back(weight((std::string(name) + "_bias").c_str()));
      return call(kind, name, std::move(operands), weights, attributes);
    };
    const int slots = call(kSortRows, "slots", {routed.experts}, {}, attributes);
    const int rows = results()[1];
    const int gate_up = product(kExpertIn, "expert_gate_up", {tokens, routed.experts, slots, rows});
    const int hidden =
        call(kSwiglu, "expert_swiglu", {gate_up, routed.weights, slots}, {}, swiglu_attributes());
    recompute_last();  // cheap beside the products
    std::vector<int> taken = {hidden, routed.experts, slots, rows};
    if (dims_.biased) taken.push_back(routed.weights);  // which multiply the bias
    return product(kExpertOut, "expert_down", std::move(taken));
  }

  Shared shared(int tokens) {
    if (dims_.shared_hidden == 0) return {};
    Shared made;
    if (dims_.shared_gate) made.gate = call(kWideLinear, "shared_gate", {tokens}, {weight("shared_gate")});
    const int gate_up = linear("shared_gate_up", tokens);
    const int hidden = call(kSwiglu, "shared_swiglu", {gate_up}, {}, SwigluAttributes());
    made.result = linear("shared_down", hidden);
    return made;
  }

  int join(int results, const Shared& shared, int residual, bool dropout) {
    int branch = results;
    if (shared.gate >= 0)
      branch = call(kGatedAdd, "add_gated", {results, shared.result, shared.gate});
    else if (shared.result >= 0)
      branch = call(kAdd, "add", {results, shared.result});
    return residual_add(branch, residual, 1, dropout);
  }

 private:
  SwigluAttributes swiglu_attributes() const {
    SwigluAttributes attributes;
    if (dims_.biased) attributes.clamped = ClampedSwiglu();
    return attributes;
  }

  std::string prefix_;
  ExpertDims dims_;
};

/// The parameters of the parts of a layer.
ExpertParts parts_of_layer(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                           const ExpertNames& names, double depth_std, const LayerTraits& traits,
                           const ExpertParallel& parallel) {
  ExpertParts parts;
  parts.router.parameters = {
      norm_weight(prefix + ".norm", hf_prefix + "post_attention_layernorm.weight", dims.width,
                  traits.norm_offset),
      packed_matrix(prefix + ".router", dims.width,
                    {matrix("weight", hf_prefix + names.router, dims.experts, kProjectionStd)})};
  if (dims.biased)
    parts.router.parameters.push_back(router_bias(prefix, hf_prefix + names.router_bias, dims.experts));
  parts.experts.parameters =
      dims.biased ? stacked_parameters(prefix, hf_prefix + names.experts, dims, names, depth_std, parallel)
                  : expert_parameters(prefix, hf_prefix, dims, names, depth_std, parallel);
  if (dims.shared_hidden > 0) add_shared(parts.shared.parameters, prefix, hf_prefix, dims, names, depth_std);
  return parts;
}

}  // namespace

ExpertNames qwen_expert_names() {
  return {.router = "mlp.gate.weight",
          .experts = "mlp.experts.",
          .gate = "gate_proj.weight",
          .up = "up_proj.weight",
          .down = "down_proj.weight",
          .shared = "mlp.shared_expert.",
          .shared_gate = "mlp.shared_expert_gate.weight"};
}

ExpertNames mixtral_expert_names() {
  return {.router = "block_sparse_moe.gate.weight",
          .experts = "block_sparse_moe.experts.",
          .gate = "w1.weight",
          .up = "w3.weight",
          .down = "w2.weight"};
}

ExpertNames deepseek_expert_names() {
  ExpertNames names = qwen_expert_names();
  names.shared = "mlp.shared_experts.";
  names.shared_gate = "";
  names.correction = "mlp.gate.e_score_correction_bias";
  return names;
}

ExpertNames gpt_oss_expert_names() {
  return {.router = "mlp.router.weight",
          .experts = "mlp.experts.",
          .gate = "gate_up_proj",
          .down = "down_proj",
          .router_bias = "mlp.router.bias"};
}

ExpertParts expert_parts(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                         const ExpertNames& names, double depth_std, bool dropout, const LayerTraits& traits,
                         const RouterSettings& router, const ExpertParallel& parallel,
                         const TensorParallel& tensor) {
  ExpertParts parts = parts_of_layer(prefix, hf_prefix, dims, names, depth_std, traits, parallel);
  const auto writer = [&](const char* region, const LayerSpec& part) {
    return ExpertWriter(region, prefix, part.parameters, traits, dims);
  };
  const auto hidden = [&](ExpertWriter& layer, const char* name) { return layer.input({name, dims.width}); };
  const LayerValue gate{.name = "gate", .width = 1, .type = ElementType::fp32};
  {
    ExpertWriter layer = writer("router", parts.router);
    const int x = hidden(layer, "hidden");
    const int tokens = layer.norm("norm", x);
    const Routed routed = layer.route(tokens, router);
    set_lists_on_slices(parts.router, layer.finish({x, tokens, routed.weights, routed.experts}), tensor);
  }
  {
    // Of rows that ranks have sent, each with one expert.
    ExpertWriter layer = writer("mlp", parts.experts);
    const int rows = hidden(layer, "rows");
    const int weights = layer.input({.name = "weights", .width = 1, .type = ElementType::fp32});
    const int experts =
        layer.input({.name = "experts", .width = 1, .type = ElementType::int32, .differentiable = false});
    const int64_t held = parallel.part_of(dims.experts).size();
    parts.experts.list = layer.finish({layer.experts(rows, {weights, experts}, held, 1)});
    parts.experts.generation = parts.experts.list;
  }
  if (dims.shared_hidden > 0) {
    ExpertWriter layer = writer("mlp", parts.shared);
    const Shared made = layer.shared(hidden(layer, "tokens"));
    std::vector<int> outputs = {made.result};
    if (made.gate >= 0) outputs.push_back(made.gate);
    set_lists_on_slices(parts.shared, layer.finish(std::move(outputs)), tensor);
  }
  {
    ExpertWriter layer = writer("join", parts.join);
    const int residual = hidden(layer, "hidden");
    const int combined = hidden(layer, "combined");
    Shared shared;
    if (dims.shared_hidden > 0) shared.result = hidden(layer, "shared");
    if (dims.shared_gate) shared.gate = layer.input(gate);
    set_lists_on_slices(parts.join, layer.finish({layer.join(combined, shared, residual, dropout)}), tensor);
  }
  if (tensor.sequence)
    for (LayerSpec* part : {&parts.router, &parts.experts, &parts.shared, &parts.join})
      part->mesh = UnitMesh::slices;
  return parts;
}

LayerSpec expert_layer(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                       const ExpertNames& names, double depth_std, bool dropout, const LayerTraits& traits,
                       const RouterSettings& router, const TensorParallel& tensor) {
  ExpertParts parts = parts_of_layer(prefix, hf_prefix, dims, names, depth_std, traits, {});
  LayerSpec layer;
  for (LayerSpec* part : {&parts.router, &parts.experts, &parts.shared})
    std::ranges::move(part->parameters, std::back_inserter(layer.parameters));
  ExpertWriter calls("mlp", prefix, layer.parameters, traits, dims);
  const int x = calls.input({"hidden", dims.width});
  const int tokens = calls.norm("norm", x);
  const Routed routed = calls.route(tokens, router);
  const int results = calls.experts(tokens, routed, dims.experts, dims.chosen);
  const Shared shared = calls.shared(tokens);
  set_lists_on_slices(layer, calls.finish({calls.join(results, shared, x, dropout)}), tensor);
  if (tensor.sequence) layer.mesh = UnitMesh::slices;
  return layer;
}

ParameterSpec router_correction(const std::string& prefix, const std::string& hf_prefix, int64_t experts,
                                const ExpertNames& names) {
  if (names.correction.empty())
    throw Error("experts: this family has no Hugging Face name for the correction of its router");
  return {prefix + ".correction",
          {experts},
          {{"weight", hf_prefix + names.correction, experts, {Initializer::Kind::zeros}}},
          ParameterTag::bias};
}

}  // namespace stepforge
