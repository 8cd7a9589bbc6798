// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/tensor_names.h"

#include <utility>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

void add_tensors(const UnitSpec& spec, size_t unit, std::vector<NamedTensor>& tensors) {
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec.parameters[i];
    int64_t row = 0;
    for (size_t s = 0; s < parameter.sub_tensors.size(); ++s) {
      const SubTensor& sub_tensor = parameter.sub_tensors[s];
      std::vector<int64_t> shape = parameter.tensor_shape(s);
      const int64_t elements = whole_slice(shape).elements();
      tensors.push_back(
          {sub_tensor.hf_name, std::move(shape), elements, unit, i, row, parameter.slice_of(s)});
      row += sub_tensor.rows;
    }
  }
}

}  // namespace

std::vector<NamedTensor> named_tensors(const ModelSpec& model) {
  std::vector<NamedTensor> tensors;
  for (size_t unit = 0; unit < model.units.size(); ++unit) add_tensors(model.units[unit], unit, tensors);
  return tensors;
}

std::vector<NamedTensor> named_tensors(const ModelStore& store) {
  std::vector<NamedTensor> tensors;
  for (size_t unit = 0; unit < store.size(); ++unit) add_tensors(store.unit(unit).spec(), unit, tensors);
  return tensors;
}

std::string optimizer_tensor_name(std::string_view name, std::string_view slot) {
  return format("{}state.{}.{}", kOptimizerPrefix, name, slot);
}

}  // namespace stepforge
