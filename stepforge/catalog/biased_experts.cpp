// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/biased_experts.h"

#include <cstddef>
#include <utility>

namespace stepforge {

namespace {

constexpr double kStackedStd = 0.02;

/// Of the tensor `hf_name` what `held`, a range of each dimension of `shape`, says.
ParameterSpec stacked(const std::string& name, const std::string& hf_name, std::vector<int64_t> shape,
                      const std::vector<ShardRange>& held, double std) {
  const Initializer init =
      std > 0 ? Initializer{Initializer::Kind::truncated_normal, std, 3.0} : Initializer{};
  ParameterSpec made{name, {}, {}, std > 0 ? ParameterTag::matrix : ParameterTag::bias};
  SubTensor tensor{.name = "weight", .hf_name = hf_name, .init = init};
  for (const ShardRange& range : held) {
    made.shape.push_back(range.size());
    tensor.offsets.push_back(range.begin);
  }
  tensor.rows = made.shape.at(0);
  if (made.shape == shape)
    tensor.offsets.clear();
  else
    tensor.tensor_shape = std::move(shape);
  made.sub_tensors = {std::move(tensor)};
  return made;
}

}  // namespace

ParameterSpec router_bias(const std::string& prefix, const std::string& hf_name, int64_t experts) {
  return stacked(prefix + ".router_bias", hf_name, {experts}, {{0, experts}}, 0);
}

std::vector<ParameterSpec> stacked_parameters(const std::string& prefix, const std::string& hf_prefix,
                                              const ExpertDims& dims, const ExpertNames& names,
                                              double depth_std, const ExpertParallel& parallel) {
  const int64_t e = dims.experts;
  const ShardRange own = parallel.part_of(e);
  const ShardRange units = parallel.units_of(dims.hidden);
  const ShardRange gate_up{2 * units.begin, 2 * units.end};  // columns of gate and up alternate
  const ShardRange all{0, dims.width};
  const std::string hf_gate_up = hf_prefix + names.gate;
  const std::string hf_down = hf_prefix + names.down;
  std::vector<ParameterSpec> parameters = {
      stacked(prefix + ".expert_gate_up", hf_gate_up, {e, dims.width, 2 * dims.hidden}, {own, all, gate_up},
              kStackedStd),
      stacked(prefix + ".expert_gate_up_bias", hf_gate_up + "_bias", {e, 2 * dims.hidden}, {own, gate_up}, 0),
      stacked(prefix + ".expert_down", hf_down, {e, dims.hidden, dims.width}, {own, units, all}, depth_std),
      stacked(prefix + ".expert_down_bias", hf_down + "_bias", {e, dims.width},
              {own, parallel.units_of(dims.width)}, 0)};
  for (ParameterSpec& parameter : parameters)
    parameter.used_share = static_cast<double>(dims.chosen) / static_cast<double>(dims.experts);
  return parameters;
}

}  // namespace stepforge
