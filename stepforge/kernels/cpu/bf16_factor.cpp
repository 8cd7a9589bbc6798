// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/bf16_factor.h"

#include <algorithm>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/cpu/block_gemm.h"
#include "stepforge/kernels/cpu/panel_product.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

/// A part of a stored matrix, rows `stride` apart.
struct FactorPart {
  const BFloat16* data;
  int64_t stride;
  int64_t rows;
  int64_t columns;
};

FactorPart part_of(const at::Tensor& stored, Range rows, Range columns) {
  const int64_t stride = stored.size(1);
  return {stored.const_data_ptr<BFloat16>() + rows.begin * stride + columns.begin, stride, rows.size(),
          columns.size()};
}

FactorPart rows_of(const FactorPart& part, int64_t begin, int64_t most) {
  return {part.data + begin * part.stride, part.stride, std::min(most, part.rows - begin), part.columns};
}

/// to[r] = row r, widened, then 0.
void widen(const FactorPart& part, float* to, int64_t to_row) {
  widen_rows(part.data, part.stride, part.rows, part.columns, 1.0F, to, to_row);
}

/// to[r] = the pairs of row r.
void copy_pairs(const FactorPart& part, float* to, int64_t to_row) {
  for (int64_t r = 0; r < part.rows; ++r) {
    auto* target = reinterpret_cast<BFloat16*>(to + r * to_row);
    std::copy_n(part.data + r * part.stride, part.columns, target);
    if (part.columns % 2 != 0) target[part.columns] = BFloat16(0.0F);
  }
}

/// to[k] = the words at k of all rows, which `line` makes of some rows at a time.
template <typename Line>
void transpose_words(const FactorPart& part, int64_t words, const Line& line, float* to, int64_t to_row) {
  alignas(64) float lined[kColumnUnit * kPackedDepth];
  for (int64_t r = 0; r < part.rows; r += kColumnUnit) {
    const FactorPart some = rows_of(part, r, kColumnUnit);
    line(some, lined, kPackedDepth);
    block_gemm().transpose(lined, kPackedDepth, some.rows, words, to + r, to_row);
  }
}

/// to[c] = the pairs of column c.
void transpose_paired_rows(const FactorPart& part, float* to, int64_t to_row) {
  constexpr int64_t kPairs = 2 * kColumnUnit;
  alignas(64) float paired[kPairs * kPackedRows];
  for (int64_t r = 0; r < part.rows; r += 2 * kPairs) {
    const FactorPart some = rows_of(part, r, 2 * kPairs);
    pair_all_rows(some.data, some.stride, some.rows, some.columns, paired, kPackedRows);
    block_gemm().transpose(paired, kPackedRows, (some.rows + 1) / 2, some.columns, to + r / 2, to_row);
  }
}

/// The numbers in these words of a depth.
Range numbers_of(Range words, int64_t depth, bool pairs) {
  return pairs ? Range{2 * words.begin, std::min(2 * words.end, depth)} : words;
}

}  // namespace

void pack_left(const ProductFactor& left, bool pairs, Range rows, Range words, float* to, int64_t to_row) {
  const Range depth = numbers_of(words, left.columns(), pairs);
  if (!left.transposed) {
    const FactorPart part = part_of(left.stored, rows, depth);
    return pairs ? copy_pairs(part, to, to_row) : widen(part, to, to_row);
  }
  const FactorPart part = part_of(left.stored, depth, rows);
  if (pairs) return transpose_paired_rows(part, to, to_row);
  transpose_words(part, rows.size(), widen, to, to_row);
}

void pack_right(const ProductFactor& right, bool pairs, Range words, Range columns, float* to) {
  if (columns.size() % kColumnUnit != 0) std::fill_n(to, words.size() * kPackedColumns, 0.0F);
  const Range depth = numbers_of(words, right.rows(), pairs);
  if (right.transposed) {
    const FactorPart part = part_of(right.stored, columns, depth);
    return transpose_words(part, words.size(), pairs ? copy_pairs : widen, to, kPackedColumns);
  }
  const FactorPart part = part_of(right.stored, depth, columns);
  if (pairs) return pair_all_rows(part.data, part.stride, part.rows, part.columns, to, kPackedColumns);
  widen(part, to, kPackedColumns);
}

}  // namespace stepforge::cpu
