// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/initial_magnitudes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "stepforge/modelspec/calls/magnitude.h"
#include "stepforge/nn/weight_norms.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// The units of a block with their values, which are freed afterwards.
class GatheredUnits {
 public:
  GatheredUnits(ModelStore& store, const std::vector<int>& units) {
    for (const int index : units) {
      UnitStore& unit = store.unit(static_cast<size_t>(index));
      if (unit.resident()) continue;
      if (unit.layout().offloaded) unit.set_working_master(unit.master().to(unit.device()));
      const at::ScalarType type = unit.parameters().front().value().scalar_type();
      unit.gather(at::empty({unit.gathered_size()}, at::device(unit.device()).dtype(type)));
      units_.push_back(&unit);
    }
  }
  GatheredUnits(const GatheredUnits&) = delete;
  GatheredUnits& operator=(const GatheredUnits&) = delete;
  ~GatheredUnits() {
    for (UnitStore* unit : units_) {
      unit->release();
      if (unit->layout().offloaded) unit->set_working_master({});
    }
  }

 private:
  std::vector<UnitStore*> units_;
};

/// Stores this rank's part of a whole parameter of a unit.
void store_values(UnitStore& unit, const std::string& parameter, const at::Tensor& values) {
  const auto& parameters = unit.spec().parameters;
  const auto found = std::ranges::find(parameters, parameter, &ParameterSpec::name);
  for (const ShardSlice& slice : unit.slices(static_cast<size_t>(found - parameters.begin())))
    unit.store(slice.local, part_of(values, slice.slice).flatten());
}

UnitStore& unit_with(ModelStore& store, const std::vector<int>& units, const std::string& parameter) {
  const auto found = std::ranges::find_if(units, [&](int unit) {
    const auto& parameters = store.unit(static_cast<size_t>(unit)).spec().parameters;
    return std::ranges::find(parameters, parameter, &ParameterSpec::name) != parameters.end();
  });
  return store.unit(static_cast<size_t>(*found));
}

/// The magnitudes of a block that are all 0: nothing has set them.
std::vector<std::string> unset_magnitudes(const BlockSpec& block, ModelStore& store) {
  std::vector<int> units;
  std::ranges::copy_if(block.units, std::back_inserter(units), [&](int unit) {
    return store.unit(static_cast<size_t>(unit)).spec().has(ParameterTag::magnitude);
  });
  const GatheredUnits gathered(store, units);
  std::vector<std::string> unset;
  for (const int unit : units)
    for (const Parameter& parameter : store.unit(static_cast<size_t>(unit)).parameters())
      if (parameter.value().count_nonzero().item<int64_t>() == 0) unset.push_back(parameter.spec().name);
  return unset;
}

/// Of each of these magnitudes the norms of its rows.
std::map<std::string, at::Tensor> norms_of(const std::vector<std::string>& magnitudes, const BlockSpec& block,
                                           ModelStore& store, const TensorExchange& tensor) {
  const GatheredUnits gathered(store, block.units);
  std::map<std::string, at::Tensor> found;
  for (const Call& call : block.list.calls) {
    if (!call.is(kMagnitude)) continue;
    std::vector<Parameter*> weights;
    for (const CallWeight& weight : call.weights) weights.push_back(&store.parameter(weight.name));
    const at::Tensor norms = weight_norms(call, weights, tensor, weight_norm_scratch(call, weights)).cpu();
    const auto& [parts, divided, experts] = attributes_of<MagnitudeAttributes>(call);
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (std::ranges::count(magnitudes, call.weights[i].name) > 0)
        found[call.weights[i].name] =
            norms.view({experts, -1})
                .narrow(1, parts[i].column_begin, call.weights[i].elements() / experts)
                .flatten()
                .clone();
  }
  return found;
}

}  // namespace

void set_initial_magnitudes(const ModelSpec& model, ModelStore& store, const TensorExchange& tensor) {
  const at::NoGradGuard no_grad;
  for (const BlockSpec& block : model.blocks) {
    const std::vector<std::string> unset = unset_magnitudes(block, store);
    if (unset.empty()) continue;
    for (const auto& [name, norms] : norms_of(unset, block, store, tensor))
      store_values(unit_with(store, block.units, name), name, norms);
  }
}

}  // namespace stepforge
