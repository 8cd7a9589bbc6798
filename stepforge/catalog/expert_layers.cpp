// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/expert_layers.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/biased_experts.h"
#include "stepforge/catalog/tensor_costs.h"
#include "stepforge/modelspec/call_region.h"

namespace stepforge {

namespace {

constexpr double kProjectionStd = 0.02;

SubTensor matrix(const std::string& name, const std::string& hf_name, int64_t rows, double std) {
  if (hf_name.empty()) throw Error(format("experts: this family has no Hugging Face name for '{}'", name));
  return {name, hf_name, rows, {Initializer::Kind::truncated_normal, std, 3.0}};
}

ParameterSpec parameter(const std::string& name, int64_t columns, std::vector<SubTensor> sub_tensors) {
  int64_t rows = 0;
  for (const SubTensor& sub_tensor : sub_tensors) rows += sub_tensor.rows;
  return {name, {rows, columns}, std::move(sub_tensors), ParameterTag::matrix};
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
      parameter(prefix + ".expert_gate_up", dims.width, std::move(gate_up)),
      parameter(prefix + ".expert_down", units.size(), std::move(down))};
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
      parameter(prefix + ".shared_gate_up", dims.width,
                {matrix("gate", hf_name("gate_proj.weight"), dims.shared_hidden, kProjectionStd),
                 matrix("up", hf_name("up_proj.weight"), dims.shared_hidden, depth_std)}));
  parameters.push_back(parameter(prefix + ".shared_down", dims.shared_hidden,
                                 {matrix("weight", hf_name("down_proj.weight"), dims.width, depth_std)}));
  if (!dims.shared_gate) return;
  const std::string gate = names.shared_gate.empty() ? "" : hf_prefix + names.shared_gate;
  parameters.push_back(
      parameter(prefix + ".shared_gate", dims.width, {matrix("weight", gate, 1, kProjectionStd)}));
}

/// A product in fp32 by a small weight [out, width], such as the router.
CallSpec wide_linear(const std::string& name, const std::string& weight, int64_t width, int64_t out) {
  CallSpec call;
  call.name = name;
  call.weights = {weight};
  call.flops = 2.0 * static_cast<double>(width) * static_cast<double>(out);
  return call;
}

CallSpec route_call(const std::string& prefix, const ExpertDims& dims) {
  CallSpec call = wide_linear("route", prefix + ".router", dims.width, dims.experts);
  call.output.fp32 = 2 * dims.chosen;  // weights and indices
  call.extra.fp32 = dims.experts;      // logits
  call.saves = {dims.width, dims.experts + dims.chosen};
  call.queued_saves.compute = dims.width;
  // The gradient of the logits, and that of the input, which is added to that of the experts.
  call.backward_workspace.token = {dims.width, dims.experts};
  call.queued.token.fp32 = dims.experts;
  return call;
}

/// At the end of a block: the gradient of its input is new, since that of its result is the block's.
void end_block(CallSpec& route, const ExpertDims& dims) {
  route.gradient.compute = dims.width;
  // The block passes its input on.
  route.queued_saves = {};
  route.queued_input.compute = dims.width;
}

/// All of nn's run_experts() as one linear call.
CallSpec experts_call(const std::string& prefix, const ExpertDims& dims) {
  const int64_t rows = dims.chosen;
  const int64_t hidden = rows * dims.hidden;
  CallSpec call{.name = "experts", .rule = TypeRule::linear, .weights = {prefix + ".expert_gate_up"}};
  call.flops = 6.0 * static_cast<double>(hidden) * static_cast<double>(dims.width);
  call.output.compute = dims.width;
  call.extra = {2 * hidden, 2 * rows};  // gate and up; where rows are
  call.saves = {2 * hidden, 3 * rows};  // and the weights; the router keeps the input
  call.queued_saves.fp32 = 2 * rows;
  call.forward_workspace.token.compute =  // the result is made when `hidden` is free again
      rows * dims.width + std::max<int64_t>(hidden - dims.width, 0);
  call.gradient = {dims.width, rows};  // and that of the weights
  call.weight_workspace.token = {3 * hidden + rows * dims.width, rows};
  call.backward_workspace.token = {2 * hidden + rows * dims.width, 0};
  call.queued.token.compute = 3 * hidden;  // the gradient of gate and up, and what goes into down
  return call;
}

/// The same of `rows` for each token, which ranks have sent: each is a token with one expert, and an input of the block.
CallSpec dispatched_experts_call(const std::string& prefix, const ExpertDims& dims, int64_t rows) {
  ExpertDims of_row = dims;
  of_row.chosen = 1;
  CallSpec call = experts_call(prefix, of_row);
  call.saves.fp32 -= 1;  // the weight of the row, which the block has
  call.queued_input.compute = dims.width;
  for (Elements* elements : {&call.output, &call.extra, &call.saves, &call.queued_saves, &call.queued_input,
                             &call.forward_workspace.token, &call.gradient, &call.weight_workspace.token,
                             &call.backward_workspace.token, &call.queued.token}) {
    elements->compute *= rows;
    elements->fp32 *= rows;
  }
  call.flops *= static_cast<double>(rows);
  return call;
}

/// `own_block`: otherwise the router keeps the input, also in a queue.
void add_shared_calls(std::vector<CallSpec>& calls, const std::string& prefix, const ExpertDims& dims,
                      bool own_block) {
  if (dims.shared_gate) {
    CallSpec gate = wide_linear("gate", prefix + ".shared_gate", dims.width, 1);
    gate.output.fp32 = 1;
    gate.backward_workspace.token = {dims.width, 0};
    gate.queued.token.fp32 = 1;
    calls.push_back(std::move(gate));
  }
  add_enter_linear(calls, "shared_gate_up", prefix + ".shared_gate_up", dims.width, 2 * dims.shared_hidden,
                   {}, /*keeps_input=*/false);
  if (!own_block) calls.back().queued_input = {};
  CallSpec swiglu;
  swiglu.name = "swiglu";
  swiglu.output.compute = dims.shared_hidden;
  swiglu.saves.compute = 2 * dims.shared_hidden;
  swiglu.gradient.compute = 2 * dims.shared_hidden;
  calls.push_back(std::move(swiglu));
  add_leave_linear(calls, "shared_down", prefix + ".shared_down", dims.shared_hidden, dims.width,
                   /*keeps_input=*/true, {});
}

/// The sum of the results. A gate needs those of the shared expert again, which `keeps` says whether the call keeps.
CallSpec add_shared_call(const ExpertDims& dims, bool keeps) {
  CallSpec sum{.name = dims.shared_gate ? "add_gated" : "add"};
  sum.output.compute = dims.width;
  if (!dims.shared_gate) return sum;
  if (keeps) sum.saves = {dims.width, 1};
  sum.gradient = {dims.width, 1};
  return sum;
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
                         const ExpertNames& names, double depth_std, bool dropout,
                         const ExpertParallel& parallel) {
  // Norm and residual are those of the MLP in whose place it is.
  LayerSpec mlp = mlp_layer(prefix, hf_prefix, dims.width, /*hidden=*/1, LayerTraits(), depth_std, dropout);
  add_sizes(mlp.region, /*keeps_input=*/true);
  const bool spread = parallel.degree > 1;
  const bool has_shared = dims.shared_hidden > 0;
  ExpertParts parts;
  parts.router.parameters = {
      mlp.parameters.front(),
      parameter(prefix + ".router", dims.width,
                {matrix("weight", hf_prefix + names.router, dims.experts, kProjectionStd)})};
  if (dims.biased)
    parts.router.parameters.push_back(router_bias(prefix, hf_prefix + names.router_bias, dims.experts));
  parts.router.region = {.name = "router", .calls = {mlp.region.calls.front(), route_call(prefix, dims)}};
  if (spread) end_block(parts.router.region.calls.back(), dims);

  parts.experts.parameters =
      dims.biased ? stacked_parameters(prefix, hf_prefix + names.experts, dims, names, depth_std, parallel)
                  : expert_parameters(prefix, hf_prefix, dims, names, depth_std, parallel);
  parts.experts.region.name = mlp.region.name;
  ExpertDims held = dims;
  held.hidden = parallel.units_of(dims.hidden).size();
  parts.experts.region.calls = {
      spread ? dispatched_experts_call(prefix, held, parallel.rows_per_token(dims.experts, dims.chosen))
             : experts_call(prefix, dims),
      {.name = "experts_down", .rule = TypeRule::memory, .weights = {prefix + ".expert_down"}}};
  add_bias_costs(parts);

  parts.shared.region.name = mlp.region.name;
  if (has_shared) {
    add_shared(parts.shared.parameters, prefix, hf_prefix, dims, names, depth_std);
    add_shared_calls(parts.shared.region.calls, prefix, dims, /*own_block=*/spread);
  }

  parts.join.region.name = "join";
  auto& calls = parts.join.region.calls;
  if (has_shared) calls.push_back(add_shared_call(dims, /*keeps=*/!spread));
  calls.push_back(mlp.region.calls.back());
  if (!has_shared) calls.back().output.compute = dims.width;
  return parts;
}

LayerSpec expert_layer(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                       const ExpertNames& names, double depth_std, bool dropout) {
  ExpertParts parts = expert_parts(prefix, hf_prefix, dims, names, depth_std, dropout);
  LayerSpec layer;
  layer.region = {.name = parts.experts.region.name, .residual = true};
  for (LayerSpec* part : {&parts.router, &parts.experts, &parts.shared, &parts.join}) {
    std::ranges::move(part->parameters, std::back_inserter(layer.parameters));
    std::ranges::move(part->region.calls, std::back_inserter(layer.region.calls));
  }
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
