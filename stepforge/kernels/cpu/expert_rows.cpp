// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_rows.h"

#include <cstring>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// Columns whose sums are in registers or the nearest cache.
constexpr int64_t kColumns = 256;

/// The sum of the rows of a token's slots, of which those below 0 are none.
template <typename T>
STEPFORGE_INLINE void sum_rows_body(const T* x, const int32_t* rows, int64_t count, int64_t width, T* out) {
  int64_t first_slot = 0;
  while (first_slot < count && rows[first_slot] < 0) ++first_slot;
  if (first_slot == count) {
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) store(out + d, 0.0F);
    return;
  }
  for (int64_t begin = 0; begin < width; begin += kColumns) {
    const int64_t columns = width - begin < kColumns ? width - begin : kColumns;
    float sums[kColumns];
    const T* first = x + rows[first_slot] * width + begin;
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) sums[d] = load(first + d);
    for (int64_t j = first_slot + 1; j < count; ++j) {
      if (rows[j] < 0) continue;
      const T* row = x + rows[j] * width + begin;
#pragma omp simd
      for (int64_t d = 0; d < columns; ++d) sums[d] += load(row + d);
    }
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) store(out + begin + d, sums[d]);
  }
}

STEPFORGE_SIMD_CLONES void sum_rows(const float* x, const int32_t* rows, int64_t count, int64_t width,
                                    float* out) {
  sum_rows_body(x, rows, count, width, out);
}
STEPFORGE_SIMD_CLONES void sum_rows(const BFloat16* x, const int32_t* rows, int64_t count, int64_t width,
                                    BFloat16* out) {
  sum_rows_body(x, rows, count, width, out);
}

template <typename T>
void combine(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& out) {
  const int64_t width = x.size(1);
  const int64_t k = rows.size(1);
  const T* in = x.const_data_ptr<T>();
  const int32_t* row = rows.const_data_ptr<int32_t>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, out.size(0), rows_per_task(k * width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) sum_rows(in, row + n * k, k, width, target + n * width);
  });
}

}  // namespace

void gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out) {
  const int64_t k = rows.rows.size(1);
  const int64_t row_bytes = x.size(1) * static_cast<int64_t>(x.element_size());
  const auto* source = static_cast<const char*>(x.const_data_ptr());
  auto* target = static_cast<char*>(out.mutable_data_ptr());
  const int32_t* slots = rows.slots.const_data_ptr<int32_t>();
  at::parallel_for(0, out.size(0), rows_per_task(x.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(target + row * row_bytes, source + slots[row] / k * row_bytes,
                  static_cast<size_t>(row_bytes));
  });
}

void combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out) {
  if (x.scalar_type() == at::kFloat) {
    combine<float>(x, rows.rows, out);
  } else {
    combine<BFloat16>(x, rows.rows, out);
  }
}

}  // namespace stepforge::cpu
