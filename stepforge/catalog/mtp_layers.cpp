// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/mtp_layers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/catalog/tensor_costs.h"
#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge {

namespace {

constexpr double kMtpProjectionStd = 0.02;

ParameterSpec norm_weight(const std::string& name, const std::string& hf_name, int64_t width) {
  return {name, {width}, {{"weight", hf_name, width, {Initializer::Kind::ones}}}, ParameterTag::norm};
}

/// A norm whose gradient is beside that of the other input of the projection.
CallSpec norm_call(const std::string& name, const std::string& weight, int64_t width, bool keeps_input) {
  CallSpec call{.name = name, .weights = {weight}};
  call.output.compute = width;
  call.extra.fp32 = 1;
  call.saves = {keeps_input ? width : 0, 1};
  call.gradient.compute = 2 * width;
  call.backward_workspace.chunk_token.fp32 = width;
  call.backward_workspace.chunk = cpu::kPartials;
  call.weight_workspace.chunk_token.fp32 = width;
  call.weight_workspace.chunk = 1;
  call.weights_beside = true;
  call.queued = call.weight_workspace;
  return call;
}

}  // namespace

BundleEntry mtp_embedded(const BundleEntry& hidden, int64_t depth) {
  BundleEntry embedded = hidden;
  embedded.name = format("embedded.{}", depth);
  embedded.ahead = true;
  return embedded;
}

std::string mtp_name(const ModelConfig& model, int64_t depth) {
  return format("layers.{}", model.n_layers + depth - 1);
}

std::string mtp_norm(const ModelConfig& model, int64_t depth) {
  return depth == 0 ? "head.norm" : mtp_name(model, depth) + ".head.norm";
}

LayerSpec mtp_layer(const std::string& prefix, const std::string& hf_prefix, const std::string& last_norm,
                    int64_t width, const TensorParallel& tensor) {
  LayerSpec layer;
  layer.parameters = {norm_weight(prefix + ".embedding_norm", hf_prefix + "enorm.weight", width),
                      norm_weight(prefix + ".hidden_norm", hf_prefix + "hnorm.weight", width),
                      {prefix + ".projection",
                       {width, 2 * width},
                       {{"weight",
                         hf_prefix + "eh_proj.weight",
                         width,
                         {Initializer::Kind::truncated_normal, kMtpProjectionStd, 3.0}}},
                       ParameterTag::matrix}};
  layer.region.name = "mtp";
  std::vector<CallSpec>& calls = layer.region.calls;
  // Two chains, as one: gradients are those of both.
  constexpr size_t kLastNorm = 1;
  calls = {norm_call("embedding_norm", prefix + ".embedding_norm", width, /*keeps_input=*/false),
           norm_call("last_norm", last_norm, width, /*keeps_input=*/false),
           norm_call("hidden_norm", prefix + ".hidden_norm", width, /*keeps_input=*/true)};
  CallSpec join{.name = "join"};
  join.output.compute = 2 * width;
  join.gradient.compute = 2 * width;
  calls.push_back(std::move(join));
  add_enter_linear(calls, "projection", prefix + ".projection", 2 * width, width, {}, /*keeps_input=*/true);
  compute_on_slices(layer, tensor);
  // The norm of a head, which sums its gradient over slices.
  if (tensor.sequence)
    calls.at(kLastNorm).backward_exchanges = {
        {BlockAxis::tensor, ExchangeKind::sum, {}, width * static_cast<int64_t>(sizeof(float))}};
  return layer;
}

LayerSpec mtp_head_layer(const std::string& prefix, const std::string& hf_prefix, const std::string& output,
                         int64_t width, int64_t vocab, int64_t chunk, const TensorParallel& tensor) {
  LayerSpec layer = head_layer(prefix, width, vocab, /*tied=*/true, chunk, tensor);
  layer.parameters.front().sub_tensors.front().hf_name = hf_prefix + "shared_head.norm.weight";
  std::ranges::find(layer.region.calls, TypeRule::loss, &CallSpec::rule)->weights = {output};
  return layer;
}

}  // namespace stepforge
