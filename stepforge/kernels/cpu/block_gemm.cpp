// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/block_gemm.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

enum class Layout : uint8_t { rows, rows_ahead, score_rows, score_columns };

constexpr bool is_plain(Layout layout) {
  return layout == Layout::rows || layout == Layout::rows_ahead;
}

/// Vectors of `lanes` elements; tiles of c of tall_rows x narrow vectors or short_rows x wide vectors fill
/// the registers.
template <int lanes, int wide, int short_rows, int narrow, int tall_rows>
struct Registers {
  static constexpr int kLanes = lanes;
  static constexpr int kWide = wide;
  static constexpr int kShortRows = short_rows;
  static constexpr int kNarrow = narrow;
  static constexpr int kTallRows = tall_rows;
  using Vector __attribute__((vector_size(lanes * sizeof(float)))) = float;
};
using Avx512 = Registers<16, 4, 6, 2, 12>;
using Avx2 = Registers<8, 2, 6, 2, 6>;
using Sse = Registers<4, 2, 4, 2, 4>;

template <Layout layout>
STEPFORGE_INLINE float element(const float* a, int64_t a_row, int64_t row, int64_t k) {
  if constexpr (is_plain(layout)) return a[row * a_row + k];
  if constexpr (layout == Layout::score_rows) return a[row * kKeyBlock + k];
  return a[k * kKeyBlock + row];
}

/// One tile of c: kRows x kVectors vectors, in registers from the first to the last k.
template <typename Isa, Layout layout, int kRows, int kVectors>
STEPFORGE_INLINE void tile(const BlockProduct& p, int64_t row, int64_t column) {
  using Vector = typename Isa::Vector;
  Vector sum[kRows][kVectors];
  float* c = p.c + row * p.c_row + column;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = Vector{};
      if (p.accumulate) std::memcpy(&sum[r][v], c + r * p.c_row + v * Isa::kLanes, sizeof(Vector));
    }
  }
  const float* a = is_plain(layout)               ? p.a + row * p.a_row
                   : layout == Layout::score_rows ? p.a + row * kKeyBlock
                                                  : p.a + row;
  const float* b = p.b + column;
  const int64_t a_row = p.a_row;
  const int64_t b_row = p.b_row;
  const int64_t depth = p.depth;
  FetchAhead ahead = layout == Layout::rows_ahead ? *p.ahead : FetchAhead{};
  for (int64_t k = 0; k < depth; ++k, b += b_row) {
    if constexpr (layout == Layout::rows_ahead) fetch_line(ahead, k);
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) std::memcpy(&right[v], b + v * Isa::kLanes, sizeof(Vector));
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float left = element<layout>(a, a_row, r, k);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += left * right[v];
    }
  }
  if constexpr (layout == Layout::rows_ahead) *p.ahead = ahead;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      std::memcpy(c + r * p.c_row + v * Isa::kLanes, &sum[r][v], sizeof(Vector));
  }
}

/// The rows that remain, at most kMost.
template <typename Isa, Layout layout, int kMost, int kVectors>
STEPFORGE_INLINE void last_tile(const BlockProduct& p, int64_t row, int64_t column) {
  if (p.rows - row == kMost) {
    tile<Isa, layout, kMost, kVectors>(p, row, column);
  } else if constexpr (kMost > 1) {
    last_tile<Isa, layout, kMost - 1, kVectors>(p, row, column);
  }
}

/// All rows of a column of tiles: full tiles first, then a smaller one for the remaining rows.
template <typename Isa, Layout layout, int kRows, int kVectors>
STEPFORGE_INLINE void column_of_tiles(const BlockProduct& p, int64_t column) {
  int64_t row = 0;
  for (; row + kRows <= p.rows; row += kRows) tile<Isa, layout, kRows, kVectors>(p, row, column);
  if constexpr (kRows > 6) {
    for (; row + 6 <= p.rows; row += 6) tile<Isa, layout, 6, kVectors>(p, row, column);
  }
  last_tile<Isa, layout, (kRows > 6 ? 6 : kRows) - 1, kVectors>(p, row, column);
}

template <typename Isa, Layout layout>
STEPFORGE_INLINE void multiply(const BlockProduct& p) {
  constexpr int64_t kWideColumns = Isa::kWide * Isa::kLanes;
  // With a row stride known only at run time, the row pointers of tall tiles do not fit the registers.
  constexpr int kNarrowRows = is_plain(layout) ? Isa::kShortRows : Isa::kTallRows;
  int64_t column = 0;
  for (; column + kWideColumns <= p.columns; column += kWideColumns) {
    column_of_tiles<Isa, layout, Isa::kShortRows, Isa::kWide>(p, column);
  }
  if constexpr (Isa::kNarrow < Isa::kWide) {
    constexpr int64_t kNarrowColumns = Isa::kNarrow * Isa::kLanes;
    for (; column + kNarrowColumns <= p.columns; column += kNarrowColumns) {
      column_of_tiles<Isa, layout, kNarrowRows, Isa::kNarrow>(p, column);
    }
    for (; column < p.columns; column += Isa::kLanes) column_of_tiles<Isa, layout, kNarrowRows, 1>(p, column);
  }
}

/// The lower (or upper) halves of two vectors, their elements in turn.
template <typename Isa, bool kUpper, size_t... kLane>
STEPFORGE_INLINE void interleave(const typename Isa::Vector& a, const typename Isa::Vector& b,
                                 typename Isa::Vector& out, std::index_sequence<kLane...> /*lanes*/) {
  constexpr size_t kFirst = kUpper ? Isa::kLanes / 2 : 0;
  out = __builtin_shufflevector(a, b, (kFirst + kLane / 2 + kLane % 2 * Isa::kLanes)...);
}

/// A square of kLanes rows and columns. Interleaving its upper half with its lower one moves a bit of the number of
/// a row to that of a column.
template <typename Isa>
STEPFORGE_INLINE void transpose_square(const float* from, int64_t from_row, float* to, int64_t to_row) {
  using Vector = typename Isa::Vector;
  constexpr int kLanes = Isa::kLanes;
  constexpr auto kSequence = std::make_index_sequence<kLanes>();
  Vector rows[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) std::memcpy(&rows[r], from + r * from_row, sizeof(Vector));
#pragma GCC unroll 4
  for (int bits = 1; bits < kLanes; bits *= 2) {
    Vector next[kLanes];
#pragma GCC unroll 8
    for (int r = 0; r < kLanes / 2; ++r) {
      interleave<Isa, false>(rows[r], rows[r + kLanes / 2], next[2 * r], kSequence);
      interleave<Isa, true>(rows[r], rows[r + kLanes / 2], next[2 * r + 1], kSequence);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) rows[r] = next[r];
  }
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) std::memcpy(to + r * to_row, &rows[r], sizeof(Vector));
}

/// The squares that cover [0, size) begin at these multiples of kLanes, the last one so that it ends at `size`.
template <typename Isa>
STEPFORGE_INLINE int64_t square_begin(int64_t multiple, int64_t size) {
  return multiple + Isa::kLanes <= size ? multiple : size - Isa::kLanes;
}

template <typename Isa>
STEPFORGE_INLINE void transpose_block(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                                      float* to, int64_t to_row) {
  if (rows < Isa::kLanes || columns < Isa::kLanes) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) to[c * to_row + r] = from[r * from_row + c];
    }
    return;
  }
  // Elements of two squares are written twice.
  for (int64_t i = 0; i < rows; i += Isa::kLanes) {
    const int64_t r = square_begin<Isa>(i, rows);
    for (int64_t j = 0; j < columns; j += Isa::kLanes) {
      const int64_t c = square_begin<Isa>(j, columns);
      transpose_square<Isa>(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
    }
  }
}

// One build per instruction set. Plain functions: a target attribute does not apply to templates.
// NOLINTBEGIN(bugprone-macro-parentheses): types and attributes cannot be in parentheses
#define STEPFORGE_BLOCK_GEMM(name, Isa, target)                                                    \
  target void name##_rows(const BlockProduct& p) {                                                 \
    multiply<Isa, Layout::rows>(p);                                                                \
  }                                                                                                \
  target void name##_rows_ahead(const BlockProduct& p) {                                           \
    multiply<Isa, Layout::rows_ahead>(p);                                                          \
  }                                                                                                \
  target void name##_score_rows(const BlockProduct& p) {                                           \
    multiply<Isa, Layout::score_rows>(p);                                                          \
  }                                                                                                \
  target void name##_score_columns(const BlockProduct& p) {                                        \
    multiply<Isa, Layout::score_columns>(p);                                                       \
  }                                                                                                \
  target void name##_transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, \
                               float* to, int64_t to_row) {                                        \
    transpose_block<Isa>(from, from_row, rows, columns, to, to_row);                               \
  }
// NOLINTEND(bugprone-macro-parentheses)

STEPFORGE_BLOCK_GEMM(sse, Sse, )
#if defined(__x86_64__)
STEPFORGE_BLOCK_GEMM(avx2, Avx2, __attribute__((target("arch=x86-64-v3"))))
STEPFORGE_BLOCK_GEMM(avx512, Avx512, __attribute__((target("arch=x86-64-v4"))))
#endif
#undef STEPFORGE_BLOCK_GEMM

constexpr BlockGemm kSse = {sse_rows, sse_rows_ahead, sse_score_rows, sse_score_columns, sse_transpose};
#if defined(__x86_64__)
constexpr BlockGemm kAvx2 = {avx2_rows, avx2_rows_ahead, avx2_score_rows, avx2_score_columns, avx2_transpose};
constexpr BlockGemm kAvx512 = {avx512_rows, avx512_rows_ahead, avx512_score_rows, avx512_score_columns,
                               avx512_transpose};
#endif

}  // namespace

const BlockGemm& block_gemm() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4") != 0) return kAvx512;
  if (__builtin_cpu_supports("x86-64-v3") != 0) return kAvx2;
#endif
  return kSse;
}

}  // namespace stepforge::cpu
