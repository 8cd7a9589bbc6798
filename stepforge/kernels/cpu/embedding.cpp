// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/embedding.h"

#include <cstring>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

void check_tokens(const int32_t* tokens, int64_t count, int64_t vocabulary) {
  for (int64_t n = 0; n < count; ++n) {
    if (tokens[n] < kNoEmbedding || tokens[n] >= vocabulary) {
      throw Error(format("embedding: token id {} at index {} is outside a vocabulary of {}", tokens[n], n,
                         vocabulary));
    }
  }
}

template <typename T>
STEPFORGE_INLINE void add_columns_body(const T* grad, float factor, float* target, int64_t columns) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) target[c] += factor * load(grad + c);
}

/// The tokens of one part of the vocabulary.
struct TokensOfPart {
  const int32_t* ids;
  int64_t begin;
  int64_t rows;

  /// The row of token n in the table; outside [0, rows) if another part has it, or none.
  int64_t row(int64_t n) const { return ids[n] - begin; }
  bool has(int64_t row) const { return row >= 0 && row < rows; }
};

template <typename T>
STEPFORGE_INLINE void add_rows_body(const TokensOfPart& tokens, int64_t count, const T* grad, float factor,
                                    float* target, int64_t width, int64_t columns) {
  for (int64_t n = 0; n < count; ++n) {
    const int64_t row = tokens.row(n);
    if (tokens.has(row)) add_columns_body(grad + n * width, factor, target + row * width, columns);
  }
}

/// Adds columns [0, columns) of every token's gradient row, times `factor`, in token order.
STEPFORGE_SIMD_CLONES void add_columns(const TokensOfPart& tokens, int64_t count, const float* grad,
                                       float factor, float* target, int64_t width, int64_t columns) {
  add_rows_body(tokens, count, grad, factor, target, width, columns);
}
STEPFORGE_SIMD_CLONES void add_columns(const TokensOfPart& tokens, int64_t count, const BFloat16* grad,
                                       float factor, float* target, int64_t width, int64_t columns) {
  add_rows_body(tokens, count, grad, factor, target, width, columns);
}

/// A thread owns columns, not rows: no two threads write the same element, and nothing needs sorting.
template <typename T>
void scatter_add(const TokensOfPart& tokens, int64_t count, const at::Tensor& grad_out, float factor,
                 const at::Tensor& grad_weight) {
  const int64_t width = grad_out.size(1);
  const T* grad = grad_out.const_data_ptr<T>();
  float* target = grad_weight.mutable_data_ptr<float>();
  constexpr int64_t kColumns = 16;  // a cache line of fp32
  const int64_t blocks = (width + kColumns - 1) / kColumns;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns;
    add_columns(tokens, count, grad + first, factor, target + first, width,
                std::min(end * kColumns, width) - first);
  });
}

template <typename T>
STEPFORGE_INLINE void multiply_body(T* values, int64_t count, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(values + i, load(values + i) * factor);
}
STEPFORGE_SIMD_CLONES void multiply(float* values, int64_t count, float factor) {
  multiply_body(values, count, factor);
}
STEPFORGE_SIMD_CLONES void multiply(BFloat16* values, int64_t count, float factor) {
  multiply_body(values, count, factor);
}

template <typename T>
void multiply_all(const at::Tensor& out, float factor) {
  T* values = out.mutable_data_ptr<T>();
  at::parallel_for(0, out.numel(), kElementsPerTask,
                   [&](int64_t begin, int64_t end) { multiply(values + begin, end - begin, factor); });
}

}  // namespace

void embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out,
                       const VocabularyPart& part, double factor) {
  const TokensOfPart ids{tokens.const_data_ptr<int32_t>(), part.begin, weight.size(0)};
  check_tokens(ids.ids, tokens.numel(), part.tokens(ids.rows));
  const int64_t row_bytes = weight.size(1) * static_cast<int64_t>(weight.element_size());
  const auto* source = static_cast<const char*>(weight.const_data_ptr());
  auto* target = static_cast<char*>(out.mutable_data_ptr());
  at::parallel_for(0, tokens.numel(), rows_per_task(weight.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t row = ids.row(n);
      char* const to = target + n * row_bytes;
      if (ids.has(row)) {
        std::memcpy(to, source + row * row_bytes, static_cast<size_t>(row_bytes));
      } else {
        std::memset(to, 0, static_cast<size_t>(row_bytes));
      }
    }
  });
  if (factor == 1.0) return;
  if (out.scalar_type() == at::kFloat) {
    multiply_all<float>(out, static_cast<float>(factor));
  } else {
    multiply_all<BFloat16>(out, static_cast<float>(factor));
  }
}

void embedding_backward(const at::Tensor& tokens, const at::Tensor& grad_out, const at::Tensor& grad_weight,
                        bool accumulate, const VocabularyPart& part, double factor) {
  const TokensOfPart ids{tokens.const_data_ptr<int32_t>(), part.begin, grad_weight.size(0)};
  check_tokens(ids.ids, tokens.numel(), part.tokens(ids.rows));
  if (!accumulate) {
    float* target = grad_weight.mutable_data_ptr<float>();
    at::parallel_for(0, grad_weight.numel(), kElementsPerTask,
                     [&](int64_t begin, int64_t end) { std::fill(target + begin, target + end, 0.0F); });
  }
  if (grad_out.scalar_type() == at::kFloat) {
    scatter_add<float>(ids, tokens.numel(), grad_out, static_cast<float>(factor), grad_weight);
  } else {
    scatter_add<BFloat16>(ids, tokens.numel(), grad_out, static_cast<float>(factor), grad_weight);
  }
}

}  // namespace stepforge::cpu
