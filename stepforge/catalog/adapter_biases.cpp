// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapter_biases.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/module_names.h"

namespace stepforge {

namespace {

/// By the name of the parameter that they replace.
using BiasParts = std::map<std::string, std::vector<ParameterSpec>, std::less<>>;

bool is_split(const ParameterSpec& parameter, const TrainedBiases& biases) {
  const auto trained = std::ranges::count_if(
      parameter.sub_tensors, [&](const SubTensor& tensor) { return biases.contains(tensor.hf_name); });
  return trained > 0 && trained < std::ssize(parameter.sub_tensors);
}

std::vector<ParameterSpec> parts_of_bias(const ParameterSpec& packed) {
  std::vector<ParameterSpec> parts;
  for (const SubTensor& tensor : packed.sub_tensors) {
    ParameterSpec part = packed;
    part.name = format("{}.{}", packed.name, tensor.name);
    part.shape = {tensor.rows};
    part.sub_tensors = {tensor};
    part.sub_tensors.front().name = "weight";
    parts.push_back(std::move(part));
  }
  return parts;
}

void split_weights(CallList& list, const BiasParts& parts) {
  for (Call& call : list.calls) {
    std::vector<CallWeight> weights;
    for (CallWeight& weight : call.weights) {
      const auto found = parts.find(weight.name);
      if (found == parts.end()) {
        weights.push_back(std::move(weight));
      } else {
        for (const ParameterSpec& part : found->second) weights.push_back(call_weight(part));
      }
    }
    call.weights = std::move(weights);
  }
}

}  // namespace

TrainedBiases::TrainedBiases(AdapterBias bias, std::span<const std::string> tensors) : bias_(bias) {
  for (const std::string& tensor : tensors) add(tensor);
}

TrainedBiases::TrainedBiases(AdapterBias bias, const ModelSpec& model) : bias_(bias) {
  for (const UnitSpec& unit : model.units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const SubTensor& tensor : parameter.sub_tensors) add(tensor.hf_name);
}

void TrainedBiases::add(std::string_view tensor) {
  if (is_adapter_factor(tensor)) adapted_.emplace(adapted_module(tensor));
}

bool TrainedBiases::contains(std::string_view tensor) const {
  if (bias_ == AdapterBias::none || is_adapter_tensor(tensor) || !tensor.ends_with(kBiasSuffix)) return false;
  return bias_ == AdapterBias::all || has_adapter(tensor);
}

bool TrainedBiases::has_adapter(std::string_view tensor) const {
  return adapted_.contains(module_of(tensor));
}

void split_biases(ModelSpec& model, const TrainedBiases& biases) {
  BiasParts parts;
  for (UnitSpec& unit : model.units) {
    std::vector<ParameterSpec> parameters;
    for (ParameterSpec& parameter : unit.parameters) {
      if (!is_split(parameter, biases)) {
        parameters.push_back(std::move(parameter));
        continue;
      }
      const std::vector<ParameterSpec>& made = parts[parameter.name] = parts_of_bias(parameter);
      std::ranges::copy(made, std::back_inserter(parameters));
    }
    unit.parameters = std::move(parameters);
  }
  if (parts.empty()) return;
  for (BlockSpec& block : model.blocks)
    for (CallList* list : {&block.list, &block.generation}) split_weights(*list, parts);
}

}  // namespace stepforge
