// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/coded_factors.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

void require_whole_blocks(const UnitSpec& unit, int64_t begin, int64_t count) {
  if (begin % kCodeBlock == 0 && count % kCodeBlock == 0) return;
  throw UsageError(
      format("model.frozen_dtype = \"{}\": {} has parts of blocks of {} weights on this rank; use another "
             "partition of units, or bf16",
             kind_of(unit.code).name, unit.name, kCodeBlock));
}

TensorFactors::TensorFactors(int64_t elements)
    : all_(at::empty({elements / kCodeBlock}, at::device(at::kCPU).dtype(at::kFloat))) {}

void TensorFactors::add(int64_t begin, const at::Tensor& values) {
  largest_of_blocks(values, all_.narrow(0, begin / kCodeBlock, values.numel() / kCodeBlock));
}

CodedFactors::CodedFactors(const UnitSpec& unit, const ShardLayout& shards, int shard)
    : unit_(unit), shard_size_(shards.shard_size()) {
  int64_t scales = 0;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.parameters[i];
    int64_t row = 0;
    for (size_t s = 0; s < parameter.sub_tensors.size(); ++s) {
      const int64_t rows = parameter.sub_tensors[s].rows;
      Tensor tensor{.parameter = i,
                    .row = row,
                    .scales_begin = scales,
                    .scales = factor_scales(parameter.tensor_elements(s)),
                    .pieces = {}};
      for (ShardSlice held : shards.slices(shard, i, row, row + rows)) {
        held.slice = moved(std::move(held.slice), parameter.slice_of(s).offsets);
        add_pieces(tensor, parameter.tensor_shape(s), held);
      }
      scales += tensor.scales;
      row += rows;
      tensors_.push_back(std::move(tensor));
    }
  }
}

/// A matrix has one piece, a stack one for each of its matrices.
void CodedFactors::add_pieces(Tensor& tensor, const std::vector<int64_t>& shape,
                              const ShardSlice& held) const {
  const auto& [offsets, sizes] = held.slice;
  const size_t row = shape.size() - 2;
  const int64_t columns = shape[row + 1];
  require_whole_blocks(unit_, held.local, sizes[row + 1]);
  require_whole_blocks(unit_, offsets[row + 1], columns);
  const int64_t elements = sizes[row] * sizes[row + 1];
  const int64_t matrices = elements == 0 ? 0 : held.elements() / elements;
  for (int64_t i = 0; i < matrices; ++i) {
    int64_t matrix = 0;  // in the tensor
    for (int64_t left = i, size = 1, d = static_cast<int64_t>(row) - 1; d >= 0; --d) {
      const auto at = static_cast<size_t>(d);
      matrix += (offsets[at] + left % sizes[at]) * size;
      left /= sizes[at];
      size *= shape[at];
    }
    const int64_t first = (matrix * shape[row] + offsets[row]) * columns + offsets[row + 1];
    tensor.pieces.push_back({(held.local + i * elements) / kCodeBlock,
                             elements / kCodeBlock,
                             {first / kCodeBlock, sizes[row + 1] / kCodeBlock, columns / kCodeBlock}});
  }
}

at::Tensor CodedFactors::codes(const at::Tensor& stored) const {
  return stored.narrow(0, 0, kind_of(unit_.code).code_bytes(shard_size_));
}

at::Tensor CodedFactors::factor_codes(const at::Tensor& stored) const {
  return stored.narrow(0, kind_of(unit_.code).code_bytes(shard_size_), shard_size_ / kCodeBlock);
}

at::Tensor CodedFactors::scales(const at::Tensor& stored, const Tensor& tensor) const {
  const at::Tensor all =
      stored.narrow(0, unit_.storage().bytes(shard_size_), unit_.scale_bytes()).view(at::kFloat);
  return all.narrow(0, tensor.scales_begin, tensor.scales);
}

void CodedFactors::store(size_t index, int64_t row, const TensorFactors& factors,
                         const at::Tensor& stored) const {
  const auto found = std::ranges::find_if(tensors_, [&](const Tensor& tensor) {
    return tensor.parameter == index && tensor.row == row && !tensor.pieces.empty();
  });
  if (found == tensors_.end()) return;
  const FactorCodes made = quantize_factors(factors.all());
  scales(stored, *found).copy_(made.scales);
  for (const Piece& piece : found->pieces) {
    const at::Tensor own = at::empty({piece.count}, made.codes.options());
    const auto* all = made.codes.const_data_ptr<uint8_t>();
    auto* to = own.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < piece.count; ++i) to[i] = all[piece.part.block(i)];
    factor_codes(stored).narrow(0, piece.begin, piece.count).copy_(own);
  }
}

void CodedFactors::store_weights(int64_t begin, const at::Tensor& values, const at::Tensor& stored) const {
  const int64_t n = values.numel();
  const WeightCodeKind& kind = kind_of(unit_.code);
  const CodedWeights made{at::empty({kind.code_bytes(n)}, at::device(at::kCPU).dtype(at::kByte)),
                          at::empty({n / kCodeBlock}, at::device(at::kCPU).dtype(at::kFloat))};
  quantize_blocks(unit_.code, values, made);
  codes(stored).narrow(0, kind.code_bytes(begin), kind.code_bytes(n)).copy_(made.codes);
}

CodedWeights CodedFactors::decode(const at::Tensor& stored) const {
  CodedWeights weights{codes(stored),
                       at::zeros({shard_size_ / kCodeBlock}, stored.options().dtype(at::kFloat))};
  const at::Tensor of_factors = factor_codes(stored);
  for (const Tensor& tensor : tensors_) {
    const at::Tensor of_tensor = scales(stored, tensor);
    for (const Piece& piece : tensor.pieces)
      dequantize_factors(of_factors.narrow(0, piece.begin, piece.count), of_tensor, piece.part,
                         weights.factors.narrow(0, piece.begin, piece.count));
  }
  return weights;
}

}  // namespace stepforge
