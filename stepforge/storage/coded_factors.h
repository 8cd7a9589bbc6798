// SPDX-License-Identifier: Apache-2.0
// Double quantization of a unit's shard (kernels/factor_codes.h). The factors of a tensor of a Hugging Face folder become codes as a whole,
// whatever part of it this rank holds: of the codes it keeps those of its own blocks, the scales it keeps all, one number for 16,384
// weights. So every layout has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/factor_codes.h"
#include "stepforge/kernels/weight_codes.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/modelspec/parameter.h"

namespace stepforge {

/// Throws UsageError if elements [begin, begin + count) of a shard are no whole blocks of codes.
void require_whole_blocks(const UnitSpec& unit, int64_t begin, int64_t count);

/// The factors of all blocks of a tensor, from parts of its values.
class TensorFactors {
 public:
  explicit TensorFactors(int64_t elements);

  /// values: elements [begin, begin + values.numel()), whole blocks of fp32 on the host.
  void add(int64_t begin, const at::Tensor& values);
  /// fp32 [elements / kCodeBlock]
  const at::Tensor& all() const { return all_; }

 private:
  at::Tensor all_;
};

class CodedFactors {
 public:
  /// Throws UsageError if a rank has parts of blocks.
  CodedFactors(const UnitSpec& unit, const ShardLayout& shards, int shard);

  /// The sub-tensor that begins at `row` of parameter `index` gets its factors. `stored`:
  /// [UnitSpec::stored_bytes(shard size)], the codes of weights, those of factors, and the scales.
  void store(size_t index, int64_t row, const TensorFactors& factors, const at::Tensor& stored) const;
  /// Stores the codes of weights [begin, begin + values.numel()) of the shard, whole blocks of fp32 on the host.
  void store_weights(int64_t begin, const at::Tensor& values, const at::Tensor& stored) const;
  /// Codes of the shard and its factors, which are decoded: fp32 [shard size / kCodeBlock], 0 between tensors.
  CodedWeights decode(const at::Tensor& stored) const;

 private:
  /// Blocks of the shard that are a part of a tensor.
  struct Piece {
    int64_t begin = 0;
    int64_t count = 0;
    FactorPart part;
  };
  struct Tensor {
    size_t parameter = 0;
    int64_t row = 0;
    int64_t scales_begin = 0;  ///< among those of the unit
    int64_t scales = 0;
    std::vector<Piece> pieces;
  };

  void add_pieces(Tensor& tensor, const std::vector<int64_t>& shape, const ShardSlice& held) const;
  at::Tensor codes(const at::Tensor& stored) const;
  at::Tensor factor_codes(const at::Tensor& stored) const;
  at::Tensor scales(const at::Tensor& stored, const Tensor& tensor) const;

  const UnitSpec& unit_;
  int64_t shard_size_;
  std::vector<Tensor> tensors_;
};

}  // namespace stepforge
