// SPDX-License-Identifier: Apache-2.0
// Units of a model that is not trained.
#pragma once

#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// Stores the weights of a unit as they are used, so that no step converts or decodes them again. State, and what is read in fp32
/// whatever the step computes in, stays as it is.
inline void store_as_read(UnitSpec& unit, DType compute) {
  if (unit.state || unit.fp32) return;
  unit.master = compute;
  unit.code = WeightCode::none;
  unit.coded_factors = false;
}

}  // namespace stepforge
