// SPDX-License-Identifier: Apache-2.0
// Products of few rows with a weight are bound by reading the weight: each of its rows is read once, and meets all rows of x. Others
// pack both sides first.
#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/bf16_product.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

constexpr int64_t kFewRows = 8;
constexpr int64_t kWeightLanes = 16;
/// Parts of the weight that are read at a time: one does not fill the queues of the memory.
constexpr int64_t kStreams = 4;
using Floats __attribute__((vector_size(kWeightLanes * sizeof(float)))) = float;
using Words __attribute__((vector_size(kWeightLanes * sizeof(uint32_t)))) = uint32_t;
using Halves __attribute__((vector_size(kWeightLanes * sizeof(uint16_t)))) = uint16_t;

STEPFORGE_INLINE void load_lanes(const float* p, Floats& lanes) {
  std::memcpy(&lanes, p, sizeof(lanes));
}
STEPFORGE_INLINE void load_lanes(const BFloat16* p, Floats& lanes) {
  Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  std::memcpy(&lanes, &words, sizeof(lanes));
}

template <typename T>
struct FewRows {
  const T* x;
  const T* weight;
  T* out;
  int64_t count;    ///< rows of x
  int64_t depth;    ///< of the sums
  int64_t outputs;  ///< the distance of rows of `out`
};

/// The products of a row of x with kRows rows of the weight, `apart` rows from each other.
template <int64_t kRows, typename T>
STEPFORGE_INLINE void columns_of_row(const T* x, const T* w, int64_t depth, int64_t apart, T* out) {
  Floats sums[kRows] = {};
  Floats left;
  Floats right;
  int64_t k = 0;
  for (; k + kWeightLanes <= depth; k += kWeightLanes) {
    load_lanes(x + k, left);
#pragma GCC unroll 8
    for (int64_t row = 0; row < kRows; ++row) {
      load_lanes(w + row * apart * depth + k, right);
      sums[row] += left * right;
    }
  }
  for (int64_t row = 0; row < kRows; ++row) {
    float sum = 0.0F;
    for (int64_t lane = 0; lane < kWeightLanes; ++lane) sum += sums[row][lane];
    for (int64_t rest = k; rest < depth; ++rest) sum += load(x + rest) * load(w + row * apart * depth + rest);
    store(out + row * apart, sum);
  }
}

template <typename T>
STEPFORGE_INLINE void few_columns_body(const FewRows<T>& product, int64_t begin, int64_t end) {
  const FewRows<T> p = product;
  // Each stream reads consecutive rows.
  const int64_t apart = (end - begin) / kStreams;
  for (int64_t column = begin; column < begin + apart; ++column)
    for (int64_t n = 0; n < p.count; ++n)
      columns_of_row<kStreams>(p.x + n * p.depth, p.weight + column * p.depth, p.depth, apart,
                               p.out + n * p.outputs + column);
  for (int64_t column = begin + apart * kStreams; column < end; ++column)
    for (int64_t n = 0; n < p.count; ++n)
      columns_of_row<1>(p.x + n * p.depth, p.weight + column * p.depth, p.depth, 0,
                        p.out + n * p.outputs + column);
}

STEPFORGE_SIMD_CLONES void few_columns(const FewRows<float>& product, int64_t begin, int64_t end) {
  few_columns_body(product, begin, end);
}
STEPFORGE_SIMD_CLONES void few_columns(const FewRows<BFloat16>& product, int64_t begin, int64_t end) {
  few_columns_body(product, begin, end);
}

template <typename T>
void multiply_few(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  const FewRows<T> product = {
      x.const_data_ptr<T>(), weight.const_data_ptr<T>(), out.mutable_data_ptr<T>(), x.size(0), x.size(1),
      weight.size(0)};
  at::parallel_for(0, product.outputs, rows_per_task(product.depth),
                   [&](int64_t begin, int64_t end) { few_columns(product, begin, end); });
}

/// Whether multiply_bf16() computes it; libtorch's products of fp32, which are MKL's, are near the peak.
bool is_in_blocks(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == at::kBFloat16 && left.numel() > 0 && right.numel() > 0 &&
         bf16_blocks() != Bf16Blocks::none;
}

}  // namespace

void linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  if (x.size(0) <= kFewRows && x.scalar_type() == at::kFloat) {
    multiply_few<float>(x, weight, out);
  } else if (x.size(0) <= kFewRows) {
    multiply_few<BFloat16>(x, weight, out);
  } else if (is_in_blocks(x, weight)) {
    multiply_bf16({.left = {x}, .right = {weight, /*transposed=*/true}, .out = out, .summand = {}});
  } else {
    reference::linear_product(x, weight, out);
  }
}

void linear_input_gradient(const at::Tensor& grad_out, const at::Tensor& weight, const at::Tensor& summand,
                           const at::Tensor& grad_x) {
  if (is_in_blocks(grad_out, weight))
    multiply_bf16({.left = {grad_out}, .right = {weight}, .out = grad_x, .summand = summand});
  else
    reference::linear_input_gradient(grad_out, weight, summand, grad_x);
}

void linear_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& grad_weight,
                            bool accumulate) {
  if (!is_in_blocks(grad_out, x))
    return reference::linear_weight_gradient(grad_out, x, grad_weight, accumulate);
  for (int64_t begin = 0; begin < x.size(0); begin += kBf16ProductTokens) {
    const int64_t end = std::min(begin + kBf16ProductTokens, x.size(0));
    multiply_bf16({.left = {grad_out.slice(0, begin, end), /*transposed=*/true},
                   .right = {x.slice(0, begin, end)},
                   .out = grad_weight,
                   .summand = accumulate || begin > 0 ? grad_weight : at::Tensor()});
  }
}

}  // namespace stepforge::cpu
