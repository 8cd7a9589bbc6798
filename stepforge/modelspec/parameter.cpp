// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/parameter.h"

#include <algorithm>
#include <cmath>

namespace stepforge {

int64_t ParameterSpec::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

int64_t ParameterSpec::active_elements() const {
  return std::llround(static_cast<double>(elements()) * used_share);
}

int64_t ParameterSpec::row_elements() const {
  int64_t product = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) product *= shape[d];
  return product;
}

TensorSlice ParameterSpec::slice_of(size_t index) const {
  const SubTensor& sub_tensor = sub_tensors.at(index);
  TensorSlice slice = whole_slice(shape);
  slice.sizes.at(0) = sub_tensor.rows;
  if (sub_tensor.is_slice()) slice.offsets = sub_tensor.offsets;
  return slice;
}

std::vector<int64_t> ParameterSpec::tensor_shape(size_t index) const {
  return sub_tensors.at(index).is_slice() ? sub_tensors[index].tensor_shape : slice_of(index).sizes;
}

int64_t ParameterSpec::tensor_elements(size_t index) const {
  return whole_slice(tensor_shape(index)).elements();
}

bool ParameterSpec::is_sliced() const {
  return std::ranges::any_of(sub_tensors, &SubTensor::is_slice);
}

Division ParameterSpec::division() const {
  if (!is_sliced()) return Division::whole;
  const bool by_columns = shape.size() > 1 && tensor_shape(0).at(1) != shape.at(1);
  return by_columns ? Division::columns : Division::rows;
}

MatrixShape ParameterSpec::matrix_of(const SubTensor& tensor) const {
  if (shape.size() == 3) return {shape[2], shape[1], true};
  return {tensor.rows, row_elements(), false};
}

bool ParameterSpec::has_parts_of_matrices() const {
  const bool stacked = shape.size() == 3;
  return std::ranges::any_of(sub_tensors, [&](const SubTensor& tensor) {
    if (!tensor.is_slice() || tensor.rows == 0) return false;
    return !stacked || !std::equal(shape.begin() + 1, shape.end(), tensor.tensor_shape.begin() + 1);
  });
}

bool UnitSpec::has(ParameterTag tag) const {
  return std::ranges::find(parameters, tag, &ParameterSpec::tag) != parameters.end();
}

int64_t UnitSpec::scale_bytes() const {
  if (!coded_factors) return 0;
  int64_t scales = 0;
  for (const ParameterSpec& parameter : parameters)
    for (size_t i = 0; i < parameter.sub_tensors.size(); ++i)
      scales += factor_scales(parameter.tensor_elements(i));
  return scales * static_cast<int64_t>(sizeof(float));
}

int64_t UnitSpec::elements() const {
  int64_t sum = 0;
  for (const ParameterSpec& parameter : parameters) sum += parameter.elements();
  return sum;
}

}  // namespace stepforge
