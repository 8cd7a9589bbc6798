// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/bf16_product.h"

#include <algorithm>
#include <exception>
#include <vector>

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/cpu/block_gemm.h"
#include "stepforge/kernels/cpu/pair_product.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

/// The most columns whose sums a thread keeps beside the result.
constexpr int64_t kSumColumns = 256;
/// Rows of a packed part of the left factor are not a power of two apart, which would place them in one set of a cache.
constexpr int64_t kLeftWords = kPackedDepth + 16;

/// c = a b or c += a b: a [rows, depth], b [depth, columns] in rows of kPackedColumns, both in words.
struct WordBlock {
  const float* a;
  int64_t a_row;
  const float* b;
  float* c;
  int64_t c_row;
  int64_t rows;
  int64_t columns;  ///< a multiple of kColumnUnit
  int64_t depth;
  bool accumulate;
};

void multiply_block(Bf16Blocks blocks, const WordBlock& block) {
  namespace onednn = at::native::cpublas;
  if (blocks == Bf16Blocks::widened)
    return onednn::brgemm(block.rows, block.columns, block.depth, block.a_row, kPackedColumns, block.c_row,
                          block.accumulate, block.a, block.b, block.c);
  if (blocks == Bf16Blocks::tiles)
    return onednn::brgemm(block.rows, block.columns, 2 * block.depth, 2 * block.a_row, kPackedColumns,
                          block.c_row, block.accumulate, reinterpret_cast<const BFloat16*>(block.a),
                          reinterpret_cast<const BFloat16*>(block.b), block.c);
  FetchAhead nothing;
  pair_product()({.a = block.a,
                  .a_row = block.a_row,
                  .b = block.b,
                  .b_row = kPackedColumns,
                  .c = block.c,
                  .c_row = block.c_row,
                  .rows = block.rows,
                  .columns = block.columns,
                  .depth = block.depth,
                  .accumulate = block.accumulate,
                  .ahead = &nothing});
}

/// After the last product of a thread: registers of tiles are state of the thread.
void release_blocks(Bf16Blocks blocks) {
  if (blocks != Bf16Blocks::pairs) at::native::cpublas::brgemm_release(blocks == Bf16Blocks::tiles);
}

/// Whether oneDNN has products of blocks of fp32 here: it throws where it has none.
bool multiplies_fp32_blocks() {
  const std::vector<float> ones(kColumnUnit * kPackedColumns, 1.0F);
  float sums[kColumnUnit] = {};
  try {
    multiply_block(Bf16Blocks::widened, {.a = ones.data(),
                                         .a_row = kColumnUnit,
                                         .b = ones.data(),
                                         .c = sums,
                                         .c_row = kColumnUnit,
                                         .rows = 1,
                                         .columns = kColumnUnit,
                                         .depth = kColumnUnit,
                                         .accumulate = false});
    release_blocks(Bf16Blocks::widened);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

Bf16Blocks find_blocks() {
  if (at::native::cpublas::could_pack(at::kBFloat16)) return Bf16Blocks::tiles;
  if (pair_product() != nullptr) return Bf16Blocks::pairs;
  return multiplies_fp32_blocks() ? Bf16Blocks::widened : Bf16Blocks::none;
}

int64_t parts_of(int64_t size, int64_t most) {
  return (size + most - 1) / most;
}

/// One of equal parts of [0, size), which begin at multiples of `unit`.
Range part_of(int64_t size, int64_t unit, int64_t part, int64_t parts) {
  const int64_t units = parts_of(size, unit);
  return {std::min(size, units * part / parts * unit), std::min(size, units * (part + 1) / parts * unit)};
}

class Bf16Run {
 public:
  explicit Bf16Run(const Bf16Product& product)
      : p_(product),
        blocks_(bf16_blocks()),
        pairs_(blocks_ != Bf16Blocks::widened),
        rows_(product.left.rows()),
        columns_(product.right.columns()),
        words_(packed_words(product.left.columns(), pairs_)),
        steps_(parts_of(words_, kPackedDepth)),
        // A row of pairs is a row of words.
        left_in_place_(pairs_ && !product.left.transposed && product.left.columns() % 2 == 0),
        right_(at::empty({bf16_product_words(product.left.columns(), columns_)},
                         at::TensorOptions(at::kFloat))) {}

  void run() {
    const int64_t most = bf16_product_columns(p_.left.columns());
    for (int64_t column = 0; column < columns_; column += most) {
      const Range columns = {column, std::min(column + most, columns_)};
      pack_columns(columns);
      multiply_columns(columns);
    }
  }

 private:
  Range depth_step(int64_t step) const { return part_of(words_, kColumnUnit, step, steps_); }

  /// Of the packed columns: where those from `column` on are, from a word of depth on.
  float* packed_at(Range packed, int64_t column, int64_t word) const {
    return right_.mutable_data_ptr<float>() + (column - packed.begin) * words_ + word * kPackedColumns;
  }

  void pack_columns(Range columns) const {
    const int64_t panels = parts_of(columns.size(), kPackedColumns);
    at::parallel_for(0, panels * steps_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = columns.begin + i / steps_ * kPackedColumns;
        const Range words = depth_step(i % steps_);
        pack_right(p_.right, pairs_, words, {first, std::min(first + kPackedColumns, columns.end)},
                   packed_at(columns, first, words.begin));
      }
    });
  }

  /// Sums are kept in place if the result is fp32 in full vectors.
  bool sums_in_place(Range columns) const {
    return p_.out.scalar_type() == at::kFloat && columns.size() % kColumnUnit == 0;
  }

  /// Each task has a part of the result.
  void multiply_columns(Range columns) const {
    const int64_t threads = at::get_num_threads();
    const int64_t row_parts =
        std::max(parts_of(rows_, kPackedRows), std::min(threads, parts_of(rows_, kColumnUnit)));
    const int64_t most = sums_in_place(columns) ? columns.size() : kSumColumns;
    const int64_t column_parts =
        std::max(parts_of(columns.size(), most),
                 std::min(parts_of(columns.size(), kPackedColumns), parts_of(2 * threads, row_parts)));
    const int64_t tasks = row_parts * column_parts;
    parallel_tasks(tasks, task_slots(tasks), [&](int64_t task, int64_t /*slot*/) {
      const Range part = part_of(columns.size(), kPackedColumns, task % column_parts, column_parts);
      multiply_part(columns, part_of(rows_, kColumnUnit, task / column_parts, row_parts),
                    {columns.begin + part.begin, columns.begin + part.end});
      release_blocks(blocks_);
    });
  }

  void multiply_part(Range packed, Range rows, Range columns) const {
    alignas(64) float sums[kPackedRows * kSumColumns];
    if (sums_in_place(columns)) {
      float* const out = p_.out.mutable_data_ptr<float>() + rows.begin * columns_ + columns.begin;
      if (p_.summand.defined() && !p_.summand.is_same(p_.out)) load_summand(rows, columns, out, columns_);
      return sum_products(packed, rows, columns, out, columns_);
    }
    if (p_.summand.defined()) load_summand(rows, columns, sums, kSumColumns);
    sum_products(packed, rows, columns, sums, kSumColumns);
    store_sums(sums, rows, columns);
  }

  void sum_products(Range packed, Range rows, Range columns, float* sums, int64_t sums_row) const {
    alignas(64) float left[kPackedRows * kLeftWords];
    for (int64_t step = 0; step < steps_; ++step) {
      const Range words = depth_step(step);
      if (!left_in_place_) pack_left(p_.left, pairs_, rows, words, left, kLeftWords);
      for (int64_t column = columns.begin; column < columns.end; column += kPackedColumns)
        multiply_block(blocks_,
                       {.a = left_in_place_ ? left_at(rows.begin, words.begin) : left,
                        .a_row = left_in_place_ ? words_ : kLeftWords,
                        .b = packed_at(packed, column, words.begin),
                        .c = sums + column - columns.begin,
                        .c_row = sums_row,
                        .rows = rows.size(),
                        .columns = round_up(std::min(kPackedColumns, columns.end - column), kColumnUnit),
                        .depth = words.size(),
                        .accumulate = step > 0 || p_.summand.defined()});
    }
  }

  const float* left_at(int64_t row, int64_t word) const {
    return static_cast<const float*>(p_.left.stored.const_data_ptr()) + row * words_ + word;
  }

  void load_summand(Range rows, Range columns, float* sums, int64_t sums_row) const {
    const auto copy = [&](const auto* from) {
      for (int64_t row = rows.begin; row < rows.end; ++row, sums += sums_row)
        widen_rows(from + row * columns_ + columns.begin, 0, 1, columns.size(), 1.0F, sums, columns.size());
    };
    if (p_.summand.scalar_type() == at::kFloat)
      copy(p_.summand.const_data_ptr<float>());
    else
      copy(p_.summand.const_data_ptr<BFloat16>());
  }

  void store_sums(const float* sums, Range rows, Range columns) const {
    const auto copy = [&](auto* to) {
      narrow_rows(sums, kSumColumns, rows.size(), columns.size(), nullptr, 1.0F,
                  to + rows.begin * columns_ + columns.begin, columns_);
    };
    if (p_.out.scalar_type() == at::kFloat)
      copy(p_.out.mutable_data_ptr<float>());
    else
      copy(p_.out.mutable_data_ptr<BFloat16>());
  }

  const Bf16Product& p_;
  Bf16Blocks blocks_;
  bool pairs_;
  int64_t rows_;
  int64_t columns_;
  int64_t words_;  ///< of depth
  int64_t steps_;  ///< in which they are multiplied
  bool left_in_place_;
  at::Tensor right_;  ///< panels of kPackedColumns columns and all words
};

}  // namespace

Bf16Blocks bf16_blocks() {
  static const Bf16Blocks blocks = find_blocks();
  return blocks;
}

void multiply_bf16(const Bf16Product& product) {
  Bf16Run(product).run();
}

}  // namespace stepforge::cpu
