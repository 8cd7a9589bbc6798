// SPDX-License-Identifier: Apache-2.0
// The second layout of experts in Hugging Face files. Most have a tensor for each matrix of each expert; `transformers` 5 keeps
// those of a layer in two tensors, and writes them so with save_original_format=False, for all families alike:
//
//   model.layers.3.mlp.experts.gate_up_proj  [experts, 2 hidden, width], of each expert first gate, then up
//   model.layers.3.mlp.experts.down_proj     [experts, width, hidden]
//   model.layers.3.mlp.gate.weight           the router; in other files Mixtral's is block_sparse_moe.gate.weight
//
// Stepforge's names are those of the first layout. (gpt-oss has only stacked tensors, of another order, under their own names.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/tensor_slice.h"

namespace stepforge {

/// The part of a stacked tensor that a tensor of the first layout is.
struct StackedPlace {
  std::string tensor;  ///< the name of the stacked one
  /// Index in its first dimension; nullopt if it is the same tensor by another name.
  std::optional<int64_t> expert = {};
  int64_t part = 0;  ///< of `parts` equal ones of the rows of this expert
  int64_t parts = 1;

  /// As a slice of a stacked tensor of this shape; nullopt if that has no such part.
  std::optional<TensorSlice> slice_of(const std::vector<int64_t>& stacked) const;
  /// The shape of the stacked tensor if this is the last expert and has shape `single`.
  std::vector<int64_t> shape_up_to(const std::vector<int64_t>& single) const;
};

/// nullopt if the tensor of this name is the same in both layouts.
std::optional<StackedPlace> stacked_place(std::string_view hf_name);

}  // namespace stepforge
