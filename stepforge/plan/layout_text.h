// SPDX-License-Identifier: Apache-2.0
// What one rank of a job holds, as text.
#pragma once

#include <string>

#include "stepforge/plan/job.h"

namespace stepforge {

/// The rank's groups, its units (partition, dtypes, reductions), its part of every tensor, and the types of values
/// in every block (modelspec/value_types.h). Lines that differ only in the layer's number are merged. Throws ValueTypeError.
std::string layout_text(const Job& job);

}  // namespace stepforge
