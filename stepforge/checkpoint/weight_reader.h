// SPDX-License-Identifier: Apache-2.0
// Weights in files, as they are loaded into masters: F32, BF16, F16 and MXFP4 (mxfp4.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/base/dtype.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/checkpoint/mxfp4.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

inline constexpr std::array<DType, 3> kWeightTypes = {DType::f32, DType::bf16, DType::f16};
/// Elements that are converted at a time: the memory of an import or export in addition to the model.
inline constexpr int64_t kWeightChunk = int64_t{1} << 20;

/// One tensor of a folder, a chunk at a time.
class WeightReader {
 public:
  /// The tensor must be there, and the folder outlive the reader.
  WeightReader(const TensorFolder& folder, const std::string& name);

  const std::vector<int64_t>& shape() const { return mxfp4_ ? mxfp4_->shape() : tensor_->shape; }

  /// Fills the one-dimensional `target`, contiguous and of any floating type, with the elements of `slice` from `begin` on:
  /// exactly, unless the type is narrower than the stored one.
  void read(const TensorSlice& slice, int64_t begin, const at::Tensor& target);

 private:
  /// `target` has the stored type.
  void read_stored(const TensorSlice& slice, int64_t begin, const at::Tensor& target);

  const TensorFolder& folder_;
  const StoredTensor* tensor_;  ///< null if it is stored as MXFP4
  std::optional<Mxfp4Reader> mxfp4_;
  at::Tensor chunk_;  ///< of the stored type
};

/// Expects the tensor in any of these types.
void expect_weight(TensorComparison& comparison, const TensorFolder& folder, const std::string& name,
                   const std::vector<int64_t>& shape);

/// Loads this rank's part of the masters, as far as the files have them.
void load_masters(const TensorFolder& folder, const TensorComparison& comparison, ModelStore& store);

}  // namespace stepforge
