// SPDX-License-Identifier: Apache-2.0
// The tokens of an embedding or of an output projection that a rank has.
#pragma once

#include "stepforge/kernels/divided.h"
#include "stepforge/modelspec/parameter.h"

namespace stepforge {

/// Of a table [vocabulary, width]; empty if it is whole.
inline VocabularyPart vocabulary_part(const ParameterSpec& table) {
  if (!table.is_sliced()) return {};
  return {table.slice_of(0).offsets.at(0), table.tensor_shape(0).at(0)};
}

}  // namespace stepforge
