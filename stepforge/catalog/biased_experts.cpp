// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/biased_experts.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace stepforge {

namespace {

constexpr double kStackedStd = 0.02;

ParameterSpec stacked(const std::string& name, const std::string& hf_name, std::vector<int64_t> shape,
                      double std, ParameterTag tag = ParameterTag::matrix) {
  const Initializer init =
      std > 0 ? Initializer{Initializer::Kind::truncated_normal, std, 3.0} : Initializer{};
  const int64_t rows = shape.at(0);
  return {name, std::move(shape), {{"weight", hf_name, rows, init}}, tag};
}

}  // namespace

LayerSpec biased_expert_layer(const std::string& prefix, const std::string& hf_prefix, const ExpertDims& dims,
                              double depth_std, bool dropout) {
  // Norm, router and cost are those of experts without biases.
  ExpertDims routed = dims;
  routed.shared_hidden = 0;
  ExpertNames names = qwen_expert_names();
  names.router = "mlp.router.weight";
  LayerSpec layer = expert_layer(prefix, hf_prefix, routed, names, depth_std, dropout);

  layer.parameters.resize(2);  // norm, router
  const auto add = [&](const char* name, const char* hf_name, std::vector<int64_t> shape, double std,
                       ParameterTag tag) {
    layer.parameters.push_back(stacked(prefix + name, hf_prefix + hf_name, std::move(shape), std, tag));
  };
  const auto add_of_experts = [&](const char* name, const char* hf_name, std::vector<int64_t> shape,
                                  double std, ParameterTag tag) {
    add(name, hf_name, std::move(shape), std, tag);
    layer.parameters.back().used_share = static_cast<double>(dims.chosen) / static_cast<double>(dims.experts);
  };
  const int64_t e = dims.experts;
  add(".router_bias", "mlp.router.bias", {e}, 0, ParameterTag::bias);
  add_of_experts(".expert_gate_up", "mlp.experts.gate_up_proj", {e, dims.width, 2 * dims.hidden}, kStackedStd,
                 ParameterTag::matrix);
  add_of_experts(".expert_gate_up_bias", "mlp.experts.gate_up_proj_bias", {e, 2 * dims.hidden}, 0,
                 ParameterTag::bias);
  add_of_experts(".expert_down", "mlp.experts.down_proj", {e, dims.hidden, dims.width}, depth_std,
                 ParameterTag::matrix);
  add_of_experts(".expert_down_bias", "mlp.experts.down_proj_bias", {e, dims.width}, 0, ParameterTag::bias);

  for (CallSpec& call : layer.region.calls) {
    if (call.name == "route") {
      call.weights.push_back(prefix + ".router_bias");
      call.queued.fixed_fp32 += e;
      call.backward_workspace.fixed_fp32 += e;
    } else if (call.name == "experts") {
      const int64_t gradients = e * (2 * dims.hidden + dims.width);  // of the biases
      call.queued.fixed_fp32 += gradients;
      call.backward_workspace.fixed_fp32 += gradients;
      call.weight_workspace.fixed_fp32 += gradients;
    } else if (call.name == "experts_down") {
      for (const char* name : {".expert_gate_up_bias", ".expert_down_bias"})
        call.weights.push_back(prefix + name);
    }
  }
  return layer;
}

}  // namespace stepforge
