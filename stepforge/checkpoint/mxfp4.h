// SPDX-License-Identifier: Apache-2.0
// Weights of experts in MXFP4 (OCP Microscaling Formats 1.0), as gpt-oss is published: for a tensor "name" [E, in, out] the
// file has, transposed, "name_blocks" [E, out, in / 32, 16], two values of 4 bits in each byte, the lower bits first, and
// "name_scales" [E, out, in / 32], the exponent of each 32 values plus 127.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

/// Whether the folder has the tensor in this form only.
bool is_mxfp4(const TensorFolder& folder, const std::string& name);

/// Why the stored parts do not form a tensor of this shape; "" if they do.
std::string fault_of_mxfp4(const TensorFolder& folder, const std::string& name,
                           const std::vector<int64_t>& shape);

/// The names of the stored parts.
std::string mxfp4_blocks(const std::string& name);
std::string mxfp4_scales(const std::string& name);

/// One such tensor as fp32, exactly. Holds the values of one expert.
class Mxfp4Reader {
 public:
  /// The parts must fit `shape`, and the folder outlive the reader.
  Mxfp4Reader(const TensorFolder& folder, std::string name);

  const std::vector<int64_t>& shape() const { return shape_; }  ///< [E, in, out]
  /// Fills `target` with the elements of `slice` from `begin` on, in row-major order.
  void read(const TensorSlice& slice, int64_t begin, std::span<float> target);

 private:
  void load(int64_t expert);

  const TensorFolder& folder_;
  std::string name_;
  std::vector<int64_t> shape_;
  int64_t expert_ = -1;
  std::vector<float> values_;  ///< of the expert: [in, out]
};

}  // namespace stepforge
