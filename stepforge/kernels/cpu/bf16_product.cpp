// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/bf16_product.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

/// The most columns whose sums a thread keeps beside the result.
constexpr int64_t kSumColumns = 256;
/// Rows of a packed part of the left factor are not a power of two apart, which would place them in one set of a cache.
constexpr int64_t kLeftWords = kPackedDepth + 16;

int64_t parts_of(int64_t size, int64_t most) {
  return (size + most - 1) / most;
}

/// One of equal parts of [0, size), which begin at multiples of `unit`.
Range part_of(int64_t size, int64_t unit, int64_t part, int64_t parts) {
  const int64_t units = parts_of(size, unit);
  return {std::min(size, units * part / parts * unit), std::min(size, units * (part + 1) / parts * unit)};
}

/// Words of some rows.
struct WordRows {
  const float* data;
  int64_t row;  ///< distance
};

/// A product, cut into steps of depth.
class Bf16Steps {
 public:
  explicit Bf16Steps(const Bf16Product& product)
      : p_(product),
        pairs_(bf16_blocks() != Bf16Blocks::widened),
        words_(packed_words(product.left.columns(), pairs_)),
        count_(parts_of(words_, kPackedDepth)) {}

  const Bf16Product& product() const { return p_; }
  bool pairs() const { return pairs_; }
  /// Of depth.
  int64_t words() const { return words_; }
  int64_t count() const { return count_; }
  Range words_of(int64_t step) const { return part_of(words_, kColumnUnit, step, count_); }

 private:
  const Bf16Product& p_;
  bool pairs_;
  int64_t words_;
  int64_t count_;
};

/// The left factor of one thread: in place, or a packed part of it.
class LeftPart {
 public:
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): packed before it is read
  explicit LeftPart(const Bf16Steps& steps)
      : steps_(steps),
        factor_(steps.product().left),
        // A row of pairs is a row of words.
        in_place_(steps.pairs() && !factor_.transposed && factor_.columns() % 2 == 0) {}

  bool in_place() const { return in_place_; }

  /// A packed part is filled with 0 up to a multiple of kColumnUnit words. Valid until the next call.
  WordRows at(Range rows, int64_t step) {
    const Range words = steps_.words_of(step);
    if (in_place_)
      return {static_cast<const float*>(factor_.stored.const_data_ptr()) + rows.begin * steps_.words() +
                  words.begin,
              steps_.words()};
    if (rows.begin != held_row_ || step != held_step_) pack(rows, words);
    held_row_ = rows.begin;
    held_step_ = step;
    return {packed_, kLeftWords};
  }

 private:
  void pack(Range rows, Range words) {
    pack_left(factor_, steps_.pairs(), rows, words, packed_, kLeftWords);
    const int64_t count = words.size();
    const int64_t rest = round_up(count, kColumnUnit) - count;
    for (int64_t row = 0; rest > 0 && row < rows.size(); ++row)
      std::fill_n(packed_ + row * kLeftWords + count, rest, 0.0F);
  }

  const Bf16Steps& steps_;
  const ProductFactor& factor_;
  bool in_place_;
  int64_t held_row_ = -1;
  int64_t held_step_ = -1;
  alignas(64) float packed_[kPackedRows * kLeftWords];
};

/// The right factor, of which a thread packs one panel of columns at a time.
class RightPanel {
 public:
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): packed before it is read
  RightPanel(const Bf16Steps& steps, int64_t end_column)
      : steps_(steps), end_(end_column), whole_(steps.words() <= kMostWords) {}

  /// Rows of the next block: oneDNN makes a kernel for each number, so that they are few.
  static int64_t block_rows(int64_t rows) { return tile_rows(rows); }

  /// Words of the next product, for the same reason; those that a packed left factor is filled up with are 0.
  int64_t depth(int64_t step, const LeftPart& left) const {
    const int64_t words = steps_.words_of(step).size();
    return left.in_place() ? words : round_up(words, kColumnUnit);
  }

  /// The packed words of a step, from a column on that begins a panel. Valid until the next call.
  const float* at(int64_t column, int64_t step) {
    if (column != held_column_ || (!whole_ && step != held_step_)) {
      for (int64_t i = whole_ ? 0 : step; i < (whole_ ? steps_.count() : step + 1); ++i) pack(column, i);
      held_column_ = column;
      held_step_ = step;
    }
    return place_of(step);
  }

 private:
  /// Deeper panels are packed in steps, again for each kPackedRows rows.
  static constexpr int64_t kMostWords = 4 * kPackedDepth;

  float* place_of(int64_t step) {
    return packed_ + (whole_ ? steps_.words_of(step).begin * kPackedColumns : 0);
  }

  void pack(int64_t column, int64_t step) {
    const Range words = steps_.words_of(step);
    pack_right(steps_.product().right, steps_.pairs(), words,
               {column, std::min(column + kPackedColumns, end_)}, place_of(step));
    const int64_t rest = round_up(words.size(), kColumnUnit) - words.size();
    std::fill_n(place_of(step) + words.size() * kPackedColumns, rest * kPackedColumns, 0.0F);
  }

  const Bf16Steps& steps_;
  int64_t end_;
  bool whole_;
  int64_t held_column_ = -1;
  int64_t held_step_ = -1;
  alignas(64) float packed_[kMostWords * kPackedColumns];
};

/// Copies rows, kSumColumns apart, past the caches.
void stream_rows(const float* from, int64_t rows, int64_t columns, float* to, int64_t to_row) {
#ifdef __SSE2__
  constexpr int64_t kLanes = 4;
  const bool aligned =
      reinterpret_cast<uintptr_t>(to) % sizeof(__m128) == 0 && to_row % kLanes == 0 && columns % kLanes == 0;
  for (int64_t row = 0; aligned && row < rows; ++row)
    for (int64_t column = 0; column < columns; column += kLanes)
      _mm_stream_ps(to + row * to_row + column, _mm_load_ps(from + row * kSumColumns + column));
  if (aligned) return _mm_sfence();
#endif
  for (int64_t row = 0; row < rows; ++row) std::copy_n(from + row * kSumColumns, columns, to + row * to_row);
}

/// Computes parts of the result.
class ResultPart {
 public:
  explicit ResultPart(const Bf16Steps& steps)
      : steps_(steps), p_(steps.product()), columns_(p_.right.columns()) {}

  /// Sums are kept in place if the result is fp32 in full vectors.
  bool sums_in_place(Range columns) const {
    return p_.out.scalar_type() == at::kFloat && columns.size() % kColumnUnit == 0 && !p_.non_temporal;
  }

  /// right.at(column, step): the packed words from a column on.
  template <typename Right>
  void multiply(Range rows, Range columns, LeftPart& left, Right& right) const {
    if (sums_in_place(columns)) {
      float* const out = p_.out.mutable_data_ptr<float>() + rows.begin * columns_ + columns.begin;
      if (p_.summand.defined() && !p_.summand.is_same(p_.out)) load_summand(rows, columns, out, columns_);
      return sum_products(rows, columns, left, right, out, columns_);
    }
    alignas(64) float sums[kPackedRows * kSumColumns];
    if (p_.summand.defined()) load_summand(rows, columns, sums, kSumColumns);
    sum_products(rows, columns, left, right, sums, kSumColumns);
    store_sums(sums, rows, columns);
  }

 private:
  template <typename Right>
  // NOLINTNEXTLINE(readability-non-const-parameter): blocks are written to `sums`
  void sum_products(Range rows, Range columns, LeftPart& left, Right& right, float* sums,
                    int64_t sums_row) const {
    for (int64_t step = 0; step < steps_.count(); ++step) {
      const WordRows a = left.at(rows, step);
      for (int64_t column = columns.begin; column < columns.end; column += kPackedColumns) {
        for (int64_t row = 0, count = 0; row < rows.size(); row += count) {
          count = right.block_rows(rows.size() - row);
          multiply_block(bf16_blocks(),
                         {.a = a.data + row * a.row,
                          .a_row = a.row,
                          .b = right.at(column, step),
                          .b_row = kPackedColumns,
                          .c = sums + row * sums_row + column - columns.begin,
                          .c_row = sums_row,
                          .rows = count,
                          .columns = round_up(std::min(kPackedColumns, columns.end - column), kColumnUnit),
                          .depth = right.depth(step, left),
                          .accumulate = step > 0 || p_.summand.defined()});
        }
      }
    }
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
    if (p_.non_temporal)
      stream_rows(sums, rows.size(), columns.size(),
                  p_.out.mutable_data_ptr<float>() + rows.begin * columns_ + columns.begin, columns_);
    else if (p_.out.scalar_type() == at::kFloat)
      copy(p_.out.mutable_data_ptr<float>());
    else
      copy(p_.out.mutable_data_ptr<BFloat16>());
  }

  const Bf16Steps& steps_;
  const Bf16Product& p_;
  int64_t columns_;
};

/// A product of all threads, which share the packed right factor.
class Bf16Run {
 public:
  explicit Bf16Run(const Bf16Product& product)
      : p_(product),
        steps_(product),
        result_(steps_),
        rows_(product.left.rows()),
        columns_(product.right.columns()),
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
  /// Packed columns from `first` on: panels of kPackedColumns columns and all words.
  struct PackedColumns {
    const Bf16Steps& steps;
    float* data;
    int64_t first;

    static int64_t block_rows(int64_t rows) { return rows; }
    int64_t depth(int64_t step, const LeftPart& /*left*/) const { return steps.words_of(step).size(); }
    float* at(int64_t column, int64_t step) const {
      return data + (column - first) * steps.words() + steps.words_of(step).begin * kPackedColumns;
    }
  };
  PackedColumns packed(Range columns) const {
    return {steps_, right_.mutable_data_ptr<float>(), columns.begin};
  }

  void pack_columns(Range columns) const {
    const int64_t panels = parts_of(columns.size(), kPackedColumns);
    at::parallel_for(0, panels * steps_.count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = columns.begin + i / steps_.count() * kPackedColumns;
        const int64_t step = i % steps_.count();
        pack_right(p_.right, steps_.pairs(), steps_.words_of(step),
                   {first, std::min(first + kPackedColumns, columns.end)}, packed(columns).at(first, step));
      }
    });
  }

  /// Each task has a part of the result.
  void multiply_columns(Range columns) const {
    const int64_t threads = at::get_num_threads();
    const int64_t row_parts =
        std::max(parts_of(rows_, kPackedRows), std::min(threads, parts_of(rows_, kColumnUnit)));
    const int64_t most = result_.sums_in_place(columns) ? columns.size() : kSumColumns;
    const int64_t column_parts =
        std::max(parts_of(columns.size(), most),
                 std::min(parts_of(columns.size(), kPackedColumns), parts_of(2 * threads, row_parts)));
    const int64_t tasks = row_parts * column_parts;
    parallel_tasks(tasks, task_slots(tasks), [&](int64_t task, int64_t /*slot*/) {
      const Range part = part_of(columns.size(), kPackedColumns, task % column_parts, column_parts);
      LeftPart left(steps_);
      const PackedColumns right = packed(columns);
      result_.multiply(part_of(rows_, kColumnUnit, task / column_parts, row_parts),
                       {columns.begin + part.begin, columns.begin + part.end}, left, right);
      release_blocks(bf16_blocks());
    });
  }

  const Bf16Product& p_;
  Bf16Steps steps_;
  ResultPart result_;
  int64_t rows_;
  int64_t columns_;
  at::Tensor right_;
};

}  // namespace

void multiply_bf16(const Bf16Product& product) {
  Bf16Run(product).run();
}

void multiply_bf16_alone(const Bf16Product& product, Range rows, Range columns) {
  const Bf16Steps steps(product);
  const ResultPart result(steps);
  LeftPart left(steps);
  RightPanel right(steps, columns.end);
  for (int64_t column = columns.begin; column < columns.end; column += kPackedColumns) {
    const Range panel = {column, std::min(column + kPackedColumns, columns.end)};
    for (int64_t row = rows.begin; row < rows.end; row += kPackedRows)
      result.multiply({row, std::min(row + kPackedRows, rows.end)}, panel, left, right);
  }
  release_blocks(bf16_blocks());
}

}  // namespace stepforge::cpu
