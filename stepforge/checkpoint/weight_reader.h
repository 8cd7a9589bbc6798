// SPDX-License-Identifier: Apache-2.0
// Weights in files (stored_weight.h), as they are loaded into masters: F32, BF16, F16 and MXFP4.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/checkpoint/initial_adapter.h"
#include "stepforge/checkpoint/mxfp4.h"
#include "stepforge/checkpoint/stored_weight.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

/// Elements that are converted at a time: the memory of an import or export in addition to the model.
inline constexpr int64_t kWeightChunk = int64_t{1} << 20;

/// Elements of about kWeightChunk, in whole rows of a tensor of this shape.
int64_t chunk_of_rows(const std::vector<int64_t>& shape);

/// One weight of a folder, a chunk at a time.
class WeightReader {
 public:
  /// The weight must be there, and the folder outlive the reader.
  WeightReader(const TensorFolder& folder, const std::string& name);

  const std::vector<int64_t>& shape() const { return mxfp4_ ? mxfp4_->shape() : place_.shape; }

  /// Fills the one-dimensional `target`, contiguous and of any floating type, with the elements of `slice` from `begin` on:
  /// exactly, unless the type is narrower than the stored one.
  void read(const TensorSlice& slice, int64_t begin, const at::Tensor& target);

 private:
  /// `target` has the stored type.
  void read_stored(const TensorSlice& slice, int64_t begin, const at::Tensor& target);

  const TensorFolder& folder_;
  WeightPlace place_;  ///< unless it is stored as MXFP4
  std::optional<Mxfp4Reader> mxfp4_;
  at::Tensor chunk_;  ///< of the stored type
};

/// A whole weight in fp32, which must be there.
at::Tensor read_whole(const TensorFolder& folder, const std::string& name);

/// Loads this rank's part of the masters, as far as the files have them; without the parts that are `taken` from them, unless null.
void load_masters(const TensorFolder& folder, const TensorComparison& comparison, ModelStore& store,
                  const InitialAdapter* taken = nullptr);

}  // namespace stepforge
