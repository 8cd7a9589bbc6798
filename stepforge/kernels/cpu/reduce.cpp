// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/reduce.h"

#include <atomic>
#include <cmath>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/scalar_memory.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// Sixteen lanes, element i in lane i % 16, folded in halves: the same order on every instruction set. (The
/// square of an fp32 number is exact in fp64, so fused and separate multiply-add agree; cubes may differ in
/// their last bit.)
template <typename Add, typename Join>
STEPFORGE_INLINE double fold_chunk(const float* x, int64_t count, Add add, Join join) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = add(lanes[lane], std::abs(double{x[i + lane]}));
  }
  for (int64_t lane = 0; i + lane < count; ++lane)
    lanes[lane] = add(lanes[lane], std::abs(double{x[i + lane]}));
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] = join(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

STEPFORGE_INLINE double sum(double left, double right) {
  return left + right;
}
/// NaN wins, from either side.
STEPFORGE_INLINE double larger(double left, double right) {
  return right > left || right != right ? right : left;
}
STEPFORGE_INLINE double add_square(double lane, double value) {
  return lane + value * value;
}
STEPFORGE_INLINE double add_cube(double lane, double value) {
  return lane + value * value * value;
}

STEPFORGE_SIMD_CLONES double chunk_sum(const float* x, int64_t count) {
  return fold_chunk(x, count, sum, sum);
}
STEPFORGE_SIMD_CLONES double chunk_sum_of_squares(const float* x, int64_t count) {
  return fold_chunk(x, count, add_square, sum);
}
STEPFORGE_SIMD_CLONES double chunk_sum_of_cubes(const float* x, int64_t count) {
  return fold_chunk(x, count, add_cube, sum);
}
STEPFORGE_SIMD_CLONES double chunk_largest(const float* x, int64_t count) {
  return fold_chunk(x, count, larger, larger);
}

double chunk_terms(NormType type, const float* x, int64_t count) {
  switch (type) {
    case NormType::l1:
      return chunk_sum(x, count);
    case NormType::l2:
      return chunk_sum_of_squares(x, count);
    case NormType::l3:
      return chunk_sum_of_cubes(x, count);
    case NormType::inf:
      return chunk_largest(x, count);
  }
  return 0.0;
}

/// Whether every exponent is below the one of infinity and NaN.
STEPFORGE_SIMD_CLONES bool range_is_finite(const float* x, int64_t count) {
  constexpr uint32_t kExponent = 0x7F800000U;
  uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) {
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(x[i]) & kExponent) == kExponent);
  }
  return bad == 0;
}

template <typename T>
double sum_of(const T* values, int64_t count) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += double{values[i]};
  return total;
}

STEPFORGE_SIMD_CLONES void add_row(const float* row, int64_t width, float* target) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) target[c] += row[c];
}

}  // namespace

void reduce_rows(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target) {
  std::fill_n(target, width, 0.0F);
  for (int64_t r = 0; r < rows; ++r) add_row(partials + r * stride, width, target);
}

void join_norm_terms(NormType type, const at::Tensor& terms, const at::Tensor& joined) {
  const auto* data = terms.const_data_ptr<double>();
  auto* target = joined.mutable_data_ptr<double>();
  double all = *target;
  for (int64_t i = 0; i < terms.numel(); ++i) {
    all = type == NormType::inf ? larger(all, data[i]) : sum(all, data[i]);
  }
  *target = all;
}

void norm_of_terms(NormType type, const at::Tensor& terms, const at::Tensor& norm) {
  const double joined = read(terms);
  write(norm, type == NormType::l2 ? std::sqrt(joined) : type == NormType::l3 ? std::cbrt(joined) : joined);
}

void norm_terms_by_chunk(const at::Tensor& flat, NormType type, const at::Tensor& partials) {
  const float* data = flat.const_data_ptr<float>();
  auto* terms = partials.mutable_data_ptr<double>();
  const int64_t elements = flat.numel();
  constexpr int64_t kChunksPerTask = 32;
  at::parallel_for(0, partials.numel(), kChunksPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kReduceChunk;
      terms[chunk] = chunk_terms(type, data + first, std::min(kReduceChunk, elements - first));
    }
  });
}

void sum_in_order(const at::Tensor& flat, const at::Tensor& total) {
  auto* target = total.mutable_data_ptr<double>();
  *target = flat.scalar_type() == at::kFloat ? sum_of(flat.const_data_ptr<float>(), flat.numel())
                                             : sum_of(flat.const_data_ptr<double>(), flat.numel());
}

bool all_finite(const at::Tensor& flat) {
  const float* data = flat.const_data_ptr<float>();
  std::atomic<bool> finite = true;
  at::parallel_for(0, flat.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    if (!range_is_finite(data + begin, end - begin)) finite = false;
  });
  return finite;
}

}  // namespace stepforge::cpu
