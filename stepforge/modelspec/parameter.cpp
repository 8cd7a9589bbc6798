// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/parameter.h"

namespace stepforge {

int64_t ParameterSpec::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

int64_t ParameterSpec::row_elements() const {
  int64_t product = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) product *= shape[d];
  return product;
}

int64_t UnitSpec::elements() const {
  int64_t sum = 0;
  for (const ParameterSpec& parameter : parameters) sum += parameter.elements();
  return sum;
}

}  // namespace stepforge
